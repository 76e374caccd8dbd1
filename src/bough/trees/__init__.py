"""Token trees: what calls share is computed once."""
