"""Training: the loop over examples and the run around it, the same for every method."""
