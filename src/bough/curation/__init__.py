"""From trajectories to training data: demonstrations, pairs and groups, each with its source."""
