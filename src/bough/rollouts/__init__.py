"""Playing: one episode, or many at once."""
