"""Every command, once: its name, one line about it, and the module that has the rest.

The module has a `Command` under the name in its `COMMANDS`: settings, function, examples, and
how a stage of a recipe is connected. A training method of an installed package is a command
too: its entry point in the group `bough.methods` names such a module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from bough.errors import InputError

if TYPE_CHECKING:
    from bough.config.base import Config

log = logging.getLogger(__name__)
GROUP = "bough.methods"


@dataclass(frozen=True)
class Row:
    """One line of the table. `stage` says whether a recipe can have the command as a stage."""

    about: str
    module: str
    stage: bool = False


@dataclass(frozen=True)
class Stage:
    """How a command is connected to the other stages of a recipe.

    `reads` is the kind of data that its setting `file` takes, `writes` the kind of data it
    writes to `artefact` inside its folder. The setting `output` is that folder, or the
    artefact itself if the command writes a single file (`one_file`). A command that plays
    episodes if it has no file (`or_plays`) gets the environment only then. The setting `adds`
    takes all earlier data of the kind that the command writes, to be added to its output; `labels` is
    the setting that names another model to learn from. `reads_by_method` has what it reads with
    each value of its setting `method`, if that is not always `reads`.
    """

    reads: str | None
    writes: str
    artefact: str
    output: str
    file: str = ""
    one_file: bool = False
    resumes: bool = False
    or_plays: bool = False
    adds: str = ""
    labels: str = ""
    reads_by_method: Mapping[str, str | None] = field(default_factory=dict)

    def input(self, settings: Mapping[str, Any]) -> str | None:
        """The kind of data that a stage with these settings reads."""
        return self.reads_by_method.get(str(settings.get("method")), self.reads)


@dataclass(frozen=True)
class Command:
    """What a module says of a command.

    `run` does the work of the command line and prints; it returns the exit code. `function` is
    the Python function of a method that an installed package brings; the others are in `bough`.
    `essential` are the settings that `--help` explains, of a command with many; `--help-all` explains all.
    """

    config: type[Config]
    run: Callable[[Any], int | None]
    examples: str = ""
    stage: Stage | None = None
    function: Callable[..., Any] | None = None
    essential: tuple[str, ...] = ()


TABLE: dict[str, Row] = {
    "data stats": Row("print statistics of a data file", "bough.commands.data"),
    "data validate": Row("list the bad rows of a data file as file:line", "bough.commands.data"),
    "data convert": Row("convert a data file to another format", "bough.commands.data"),
    "data show": Row("print records as readable transcripts", "bough.commands.data"),
    "data formats": Row("list the formats that can be read and written", "bough.commands.data"),
    "doctor": Row(
        "show which tokens of a data file would be trained, and what is wrong with it",
        "bough.commands.doctor",
    ),
    "run": Row("run a recipe: from a model and an environment to a better agent", "bough.commands.run"),
    "sweep": Row("run a recipe with several values of some settings and several seeds", "bough.commands.sweep"),
    "runs list": Row("list runs and their progress", "bough.commands.run"),
    "runs show": Row("show one run: its stages, their inputs and outputs, its results", "bough.commands.run"),
    "env list": Row("list the environments, or the options of one", "bough.commands.environments"),
    "env check": Row("check your own environment against the contract", "bough.commands.environments"),
    "env new": Row("write a new environment with its test and a recipe", "bough.commands.environments"),
    "env setup": Row("install what an environment needs besides Python packages", "bough.commands.environments"),
    "play": Row("play in an environment yourself, or replay actions", "bough.commands.play"),
    "collect": Row("let a model play episodes and record them", "bough.commands.collect", stage=True),
    "demos": Row("select the episodes worth imitating", "bough.commands.curate", stage=True),
    "corrections": Row(
        "label the agent's own episodes with what an expert or a stronger model would have replied",
        "bough.commands.curate",
        stage=True,
    ),
    "pairs": Row(
        "find preference pairs: a better and a worse continuation of the same state",
        "bough.commands.curate",
        stage=True,
    ),
    "groups": Row("group the attempts at each task", "bough.commands.curate", stage=True),
    "sft": Row("train on demonstrations", "bough.methods.sft", stage=True),
    "dpo": Row("train on preference pairs", "bough.methods.dpo", stage=True),
    "grpo": Row("train on groups of attempts", "bough.methods.grpo", stage=True),
    "distill": Row("on-policy distillation from a teacher", "bough.methods.distill", stage=True),
    "evolve": Row("train a population of adapters and breed it by fitness", "bough.commands.evolve", stage=True),
    "eval": Row(
        "evaluate models in an environment, with intervals and paired tests, or on a held-out file",
        "bough.commands.evaluate",
        stage=True,
    ),
    "compare": Row("compare evaluations, with significance tests", "bough.commands.evaluate"),
    "view": Row("view a run or a data file in the browser", "bough.commands.view"),
    "serve": Row("serve a model over an OpenAI-compatible address and record every call", "bough.commands.serve"),
    "merge": Row("merge an adapter into its base model", "bough.commands.publish"),
    "card": Row("write the model card of a trained model", "bough.commands.publish"),
    "push": Row("upload a trained model and its card to the Hub", "bough.commands.publish"),
}
# Commands that resume in their output folder without being told to.
RESUMED = ("collect", "eval", "run", "sweep")


def names() -> list[str]:
    """Every command, those of installed packages last."""
    return [*TABLE, *_installed()]


def about(name: str) -> str:
    """One line about a command, without importing it."""
    if name in TABLE:
        return TABLE[name].about
    found = _installed()[name]
    summary = found.dist.metadata["Summary"] if found.dist else None
    return str(summary or f"a method of {found.value}")


def command(name: str) -> Command:
    """A command by its name; its module is imported. InputError if an installed method does not declare itself."""
    module = _module(name)
    found = getattr(module, "COMMANDS", {}).get(name)
    if not isinstance(found, Command):
        raise InputError(f"the method {name!r} of {module.__name__}: the module has no COMMANDS[{name!r}]")
    if name not in TABLE and found.config.command != name:
        raise InputError(f"the method {name!r} of {module.__name__}: its settings have no `command = {name!r}`")
    return found


@cache
def stages() -> dict[str, Stage]:
    """Every command that can be a stage of a recipe. An installed method that cannot be used is left out."""
    found: dict[str, Stage] = {}
    for name in names():
        if name in TABLE and not TABLE[name].stage:
            continue
        try:
            stage = command(name).stage
        except InputError as error:
            if name in TABLE:
                raise
            log.warning("%s; it cannot be a stage.", error)
            continue
        if stage is not None:
            found[name] = stage
    return found


def _module(name: str) -> Any:
    if name in TABLE:
        return import_module(TABLE[name].module)
    found = _installed()[name]
    try:
        return found.load()
    except Exception as error:
        raise InputError(f"the method {name!r} of {found.value} cannot be imported: {error}") from error


@cache
def _installed() -> dict[str, EntryPoint]:
    """Methods of installed packages; a name of ours is not taken over."""
    return {found.name: found for found in entry_points(group=GROUP) if found.name not in TABLE}
