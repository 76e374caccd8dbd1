"""Bough turns an open language model into an agent."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bough import bit_exact

if TYPE_CHECKING:
    from bough.config.training import DPOConfig, GRPOConfig, SFTConfig
    from bough.environments.base import Environment, Observation, WorldError
    from bough.environments.tools import ToolEnvironment, ToolError, tool
    from bough.errors import BoughError, InputError
    from bough.policy.policy import Policy
    from bough.stages.train import Trained, dpo, grpo, sft
    from bough.trajectories.reader import Reader, read
    from bough.trajectories.writer import Writer
    from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn

__version__ = "0.1.0"
bit_exact.prepare()  # before anything below loads torch

# What is public and where it lives; loaded when it is first asked for, so that `import bough` is quick.
_HOMES = {
    "bough.config.training": ("DPOConfig", "GRPOConfig", "SFTConfig"),
    "bough.environments.base": ("Environment", "Observation", "WorldError"),
    "bough.environments.tools": ("ToolEnvironment", "ToolError", "tool"),
    "bough.errors": ("BoughError", "InputError"),
    "bough.stages.train": ("Trained", "dpo", "grpo", "sft"),
    "bough.policy.policy": ("Policy",),
    "bough.trajectories.reader": ("Reader", "read"),
    "bough.trajectories.writer": ("Writer",),
    "bough.types": ("Call", "Group", "Message", "Pair", "Task", "ToolCall", "Trajectory", "Turn"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022  as above
    "DPOConfig", "GRPOConfig", "SFTConfig", "Environment", "Observation", "WorldError", "BoughError", "InputError",
    "Trained", "dpo", "grpo", "sft", "Policy", "Reader", "read", "Writer", "Call", "Group", "Message", "Pair", "Task",
    "ToolCall", "Trajectory", "Turn", "ToolEnvironment", "ToolError", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bough' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
