"""Environments of other libraries: OpenEnv and MCP servers, TextArena games, Gymnasium, tasksets of verifiers.

Whatever goes wrong on their side is an `EnvironmentFailedError`: the episode is played again
and nothing is held against the agent.
"""
