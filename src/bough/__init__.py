"""Bough turns an open language model into an agent.

    import bough
    played = bough.collect("smollm2", "household", tasks=64, attempts=4)
    pairs = bough.pairs(played)
    agent = bough.dpo("smollm2", pairs, max_steps=50)
    print(bough.evaluate(["smollm2", agent], "household", tasks=200))

Every command is a function that takes names or objects and returns objects; `dir(bough)`
lists them. What is public is loaded when it is first used, so `import bough` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bough import bit_exact

if TYPE_CHECKING:
    __version__: str
    from bough.api.checks import Checkup, check, doctor
    from bough.api.collect import collect
    from bough.api.curate import corrections, demos, groups, pairs
    from bough.api.data import convert, show, stats, validate, write
    from bough.api.evaluate import Compared, Evaluation, HeldOutMeasures, compare, evaluate
    from bough.api.evolve import EvolvedModel, evolve
    from bough.api.models import LoadedModel, TrainedModel, load
    from bough.api.play import play
    from bough.api.preference_gym import PreferenceAgent, PreferenceGym
    from bough.api.publish import card, merge, push
    from bough.api.recipe import RecipeRun, run
    from bough.api.recorded import recorded
    from bough.api.records import Facts, Records
    from bough.api.serve import RecordingServer, serve
    from bough.api.sweep import SweepResult, sweep
    from bough.api.training import distill, dpo, grpo, sft
    from bough.api.view import Viewer, export_page, view
    from bough.config.sampling import SamplingConfig
    from bough.engines.local.engine import LocalEngine
    from bough.environments.base import Environment, EnvironmentFailedError, Observation
    from bough.environments.listing import ListedEnvironment, list_environments
    from bough.environments.tool_failures import ToolError
    from bough.environments.tools import ToolEnvironment, tool
    from bough.errors import BoughError, InputError
    from bough.methods.advantages import group_advantages
    from bough.methods.dpo import Sides, dpo_loss
    from bough.methods.sft import sft_loss
    from bough.methods.surrogate import grpo_loss
    from bough.policy.adapters import Lora
    from bough.policy.policy import Policy
    from bough.runs.listing import ListedRun, list_runs
    from bough.trajectories.reader import Reader, read
    from bough.trajectories.writer import Writer
    from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn

bit_exact.prepare()  # before anything below loads torch

_HOMES = {
    "bough.api.checks": ("Checkup", "check", "doctor"),
    "bough.api.collect": ("collect",),
    "bough.api.curate": ("corrections", "demos", "groups", "pairs"),
    "bough.api.data": ("convert", "show", "stats", "validate", "write"),
    "bough.api.evaluate": ("Compared", "Evaluation", "HeldOutMeasures", "compare", "evaluate"),
    "bough.api.evolve": ("EvolvedModel", "evolve"),
    "bough.api.models": ("LoadedModel", "TrainedModel", "load"),
    "bough.api.play": ("play",),
    "bough.api.preference_gym": ("PreferenceAgent", "PreferenceGym"),
    "bough.api.publish": ("card", "merge", "push"),
    "bough.api.recipe": ("RecipeRun", "run"),
    "bough.api.recorded": ("recorded",),
    "bough.api.records": ("Facts", "Records"),
    "bough.api.serve": ("RecordingServer", "serve"),
    "bough.api.sweep": ("SweepResult", "sweep"),
    "bough.api.training": ("distill", "dpo", "grpo", "sft"),
    "bough.api.view": ("Viewer", "export_page", "view"),
    "bough.config.sampling": ("SamplingConfig",),
    "bough.engines.local.engine": ("LocalEngine",),
    "bough.environments.base": ("Environment", "Observation", "EnvironmentFailedError"),
    "bough.environments.listing": ("ListedEnvironment", "list_environments"),
    "bough.environments.tool_failures": ("ToolError",),
    "bough.environments.tools": ("ToolEnvironment", "tool"),
    "bough.errors": ("BoughError", "InputError"),
    "bough.methods.advantages": ("group_advantages",),
    "bough.methods.dpo": ("Sides", "dpo_loss"),
    "bough.methods.sft": ("sft_loss",),
    "bough.methods.surrogate": ("grpo_loss",),
    "bough.policy.adapters": ("Lora",),
    "bough.policy.policy": ("Policy",),
    "bough.runs.listing": ("ListedRun", "list_runs"),
    "bough.trajectories.reader": ("Reader", "read"),
    "bough.trajectories.writer": ("Writer",),
    "bough.types": ("Call", "Group", "Message", "Pair", "Task", "ToolCall", "Trajectory", "Turn"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [
    "BoughError",
    "Call",
    "Checkup",
    "Compared",
    "Environment",
    "EnvironmentFailedError",
    "Evaluation",
    "EvolvedModel",
    "Facts",
    "Group",
    "HeldOutMeasures",
    "InputError",
    "ListedEnvironment",
    "ListedRun",
    "LoadedModel",
    "LocalEngine",
    "Lora",
    "Message",
    "Observation",
    "Pair",
    "Policy",
    "PreferenceAgent",
    "PreferenceGym",
    "Reader",
    "RecipeRun",
    "RecordingServer",
    "Records",
    "SamplingConfig",
    "Sides",
    "SweepResult",
    "Task",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "TrainedModel",
    "Trajectory",
    "Turn",
    "Viewer",
    "Writer",
    "card",
    "check",
    "collect",
    "compare",
    "convert",
    "corrections",
    "demos",
    "distill",
    "doctor",
    "dpo",
    "dpo_loss",
    "evaluate",
    "evolve",
    "export_page",
    "group_advantages",
    "groups",
    "grpo",
    "grpo_loss",
    "list_environments",
    "list_runs",
    "load",
    "merge",
    "pairs",
    "play",
    "push",
    "read",
    "recorded",
    "run",
    "serve",
    "sft",
    "sft_loss",
    "show",
    "stats",
    "sweep",
    "tool",
    "validate",
    "view",
    "write",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("bough")
    if name not in _HOME:
        raise AttributeError(f"module 'bough' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
