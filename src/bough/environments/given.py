"""Environments, rewards and agents that a Python program handed in, by the names that settings use for them.

Settings are text: they end up in YAML files and records. A class or a function given to
the Python API is kept here under its name, for as long as the process lives, and the
registries look here first. Giving another one of the same name replaces it, as running a notebook cell again does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ENVIRONMENTS: dict[str, type[Any]] = {}
REWARDS: dict[str, Callable[..., Any]] = {}
AGENTS: dict[str, Callable[..., Any]] = {}
