"""How good a model is, and how sure of it we are."""
