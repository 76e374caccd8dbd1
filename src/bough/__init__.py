"""Bough turns an open language model into an agent."""

__version__ = "0.1.0"
