"""Are the files, models, environments and clusters that a command names there? Checked before heavy imports.

torch and transformers take seconds to import; a misspelt path is reported without them.
What the files contain is checked by the command itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.commands import table
from bough.commands.table import RESUMED, Command
from bough.config.base import Config, is_code
from bough.config.groups import AGENT_PREFIX
from bough.config.parts import leaves
from bough.config.problems import flag, is_positional, on_command_line
from bough.data.lines import files
from bough.errors import InputError
from bough.models.resolve import check_name

# Settings that name data files or folders, and those that name a single file.
DATA = ("file", "train_file", "eval_file", "test_file", "also", "mix")
SINGLE_FILES = ("task_file", "test_task_file", "eval_task_file", "chat_template")


def check_inputs(config: Config) -> None:
    """InputError where an input is missing; several are reported together."""
    problems = list(_problems(config))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError(f"{len(problems)} inputs cannot be used:", problems)
    for address in _values(config, "cluster"):
        from bough.rollouts.ray import check_address

        check_address(address)


def _problems(config: Config) -> Iterator[str]:
    for name in DATA:
        for path in _values(config, name):
            try:
                files(path)
            except InputError as error:
                yield str(error)
    for name in SINGLE_FILES:
        for path in _values(config, name):
            if not Path(path).is_file():
                yield f"{flag(name)} {path}: there is no such file"
    yield from _unknown_environments(config)
    if _values(config, "engine") != ["openai"]:  # a server has models and adapters of its own
        yield from _missing_adapters(config)
        yield from _unknown_models(config)


def _unknown_environments(config: Config) -> Iterator[str]:
    for name in filter(None, _values(config, "environment")):  # evolve has none where fitness is measured on files
        if is_code(name) or name.startswith(AGENT_PREFIX):
            continue  # the user's own code is imported by the command itself
        from bough.environments.registry import find_listed

        try:
            find_listed(name)
        except InputError as error:
            yield str(error)


def _missing_adapters(config: Config) -> Iterator[str]:
    leaf = leaves(type(config)).get("adapter")
    for path in [] if leaf is None or is_positional(leaf.info) else _values(config, "adapter"):
        if not Path(path).is_dir():
            yield f"--adapter {path}: there is no such folder"


def _unknown_models(config: Config) -> Iterator[str]:
    models, others = _values(config, "model"), [*_values(config, "by"), *_values(config, "teacher")]
    if not models and not others:
        return
    # The settings of other commands take a fifth of the time of one that needs no model.
    from bough.config.groups import is_server
    from bough.evaluation.contest import BASELINES

    for name in [*models, *(name for name in others if not is_server(name))]:
        try:
            if name not in BASELINES:
                check_name(name)
        except InputError as error:
            yield str(error)


def _values(config: Config, name: str) -> list[Any]:
    leaf = leaves(type(config)).get(name)
    value = leaf.of(config) if leaf else None
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [] if value is None else [value]


# Flags of other commands: what to say where a command is given one that it does not have.

MAX_NAMED = 8  # commands that a sentence lists
SEVERAL = "several processes train with accelerate launch --num_processes 2 -m bough {} …"
PLAY = "it trains on files: record episodes with bough collect, then make the file with bough {}"
# What to do instead, by command and flag.
INSTEAD = {name: {"resume": "the same command resumes by itself"} for name in RESUMED}
for _name, _select in (("sft", "demos"), ("dpo", "pairs")):
    INSTEAD[_name] = dict.fromkeys(("cluster", "workers", "gpus_per_worker", "learners"), SEVERAL.format(_name))
    INSTEAD[_name] |= dict.fromkeys(("environment", "agent"), PLAY.format(_select))


def explained(command: str, name: str, problem: str) -> str:
    """A better sentence than `problem` for the unknown flag of the setting `name`, if other commands have the flag."""
    instead = INSTEAD.get(command, {}).get(name)
    owners = [other for other in table.names() if name in _flags(table.command(other))]
    if not owners or ("did you mean" in problem and not instead):
        return problem
    more = ", …" if len(owners) > MAX_NAMED else ""
    sentence = f"{flag(name)} is a flag of bough {', '.join(owners[:MAX_NAMED])}{more}, not of bough {command}"
    return f"{sentence}; {instead}" if instead else sentence


def _flags(command: Command) -> set[str]:
    settings = leaves(command.config).values()
    return {on_command_line(leaf) for leaf in settings if not is_positional(leaf.info)}
