"""Training methods: each file has one method's settings, its examples, its loss and its metrics."""
