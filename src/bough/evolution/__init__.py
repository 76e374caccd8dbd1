"""`bough evolve`: a population of adapters on one base, selected by what they achieve."""
