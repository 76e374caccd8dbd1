"""The environment contract. An environment is made fresh for a task and speaks messages only."""
