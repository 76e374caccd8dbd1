"""Scripted experts: for a page by its name, from the goal and what is shown to the next action."""
