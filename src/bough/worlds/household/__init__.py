"""Household: ALFWorld's text games in plain Python, official ones and generated ones."""
