"""A model with its adapters: log-probabilities, the head, loading, saving, sharding."""
