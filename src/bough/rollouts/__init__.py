"""Rollouts: one episode, or many at the same time."""
