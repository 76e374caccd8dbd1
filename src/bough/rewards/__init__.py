"""Rewards: plain functions of a finished trajectory, and a rubric that weighs them."""
