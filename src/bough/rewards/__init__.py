"""Rewards: plain functions of finished trajectories, and a rubric that weights them."""
