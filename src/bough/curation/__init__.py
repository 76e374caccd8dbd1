"""From trajectories to what is trained on: demonstrations, pairs and groups, each with where it came from."""
