"""Environments of other libraries: OpenEnv servers, MCP servers, TextArena games and Gymnasium environments.

Whatever goes wrong on their side is an `EnvironmentFailedError`: the episode is played again
and nothing is held against the agent.
"""
