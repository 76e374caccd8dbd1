"""`bough sweep RECIPE --vary …`: a recipe with every combination of some settings and several seeds."""
