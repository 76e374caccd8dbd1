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

if TYPE_CHECKING:
    __version__: str
    from bough.commands.collect import collect
    from bough.commands.curate import corrections, demos, groups, pairs
    from bough.commands.data import convert, show, stats, validate, write
    from bough.commands.doctor import Checkup, check, doctor
    from bough.commands.evaluate import Compared, Evaluation, HeldOutMeasures, compare, evaluate
    from bough.commands.evolve import EvolvedModel, evolve
    from bough.commands.models import LoadedModel, TrainedModel, load
    from bough.commands.objects import Facts, Records
    from bough.commands.play import play
    from bough.commands.preference import PreferenceAgent, PreferenceGym
    from bough.commands.publish import card, merge, push
    from bough.commands.run import RecipeRun, run
    from bough.commands.serve import RecordingServer, recorded, serve
    from bough.commands.sweep import SweepResult, sweep
    from bough.commands.view import Viewer, export_page, view
    from bough.config.groups import SamplingConfig
    from bough.curation.advantages import group_advantages
    from bough.data.reader import Reader, read
    from bough.data.writer import Writer
    from bough.engines.local.engine import LocalEngine
    from bough.environments.base import Environment, EnvironmentFailedError, Observation
    from bough.environments.registry import ListedEnvironment, list_environments
    from bough.environments.tools import ToolEnvironment, ToolError, tool
    from bough.errors import BoughError, InputError
    from bough.experiments.listing import ListedRun, list_runs
    from bough.methods.distill import distill
    from bough.methods.dpo import Sides, dpo, dpo_loss
    from bough.methods.grpo import grpo, grpo_loss
    from bough.methods.sft import sft, sft_loss
    from bough.policy.adapters import Lora
    from bough.policy.policy import Policy
    from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn

# What is public and not a command, by its module; the commands are in the table.
_HOMES = {
    "bough.commands.data": ("write",),
    "bough.commands.doctor": ("Checkup", "check"),
    "bough.commands.evaluate": ("Compared", "Evaluation", "HeldOutMeasures", "evaluate"),
    "bough.commands.evolve": ("EvolvedModel",),
    "bough.commands.preference": ("PreferenceAgent", "PreferenceGym"),
    "bough.commands.models": ("LoadedModel", "TrainedModel", "load"),
    "bough.commands.objects": ("Facts", "Records"),
    "bough.commands.run": ("RecipeRun",),
    "bough.commands.serve": ("RecordingServer", "recorded"),
    "bough.commands.sweep": ("SweepResult",),
    "bough.commands.view": ("Viewer", "export_page"),
    "bough.config.groups": ("SamplingConfig",),
    "bough.data.reader": ("Reader", "read"),
    "bough.data.writer": ("Writer",),
    "bough.engines.local.engine": ("LocalEngine",),
    "bough.environments.base": ("Environment", "EnvironmentFailedError", "Observation"),
    "bough.environments.registry": ("ListedEnvironment", "list_environments"),
    "bough.environments.tools": ("ToolEnvironment", "ToolError", "tool"),
    "bough.errors": ("BoughError", "InputError"),
    "bough.experiments.listing": ("ListedRun", "list_runs"),
    "bough.curation.advantages": ("group_advantages",),
    "bough.methods.dpo": ("Sides", "dpo_loss"),
    "bough.methods.grpo": ("grpo_loss",),
    "bough.methods.sft": ("sft_loss",),
    "bough.policy.adapters": ("Lora",),
    "bough.policy.policy": ("Policy",),
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
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    from bough.commands import table

    if name in __all__:  # a command, or one of `bough data`
        return getattr(import_module((table.TABLE.get(name) or table.TABLE[f"data {name}"]).module), name)
    if not name.startswith("_") and name in table.names() and (function := table.command(name).function) is not None:
        return function
    raise AttributeError(f"module 'bough' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
