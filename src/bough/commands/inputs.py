"""Are the files, models, environments and clusters that a command names there? Checked before heavy imports.

torch and transformers take seconds to import; a misspelt path is reported without them.
What the files contain is checked by the command itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.config.base import Config
from bough.config.code_names import is_code
from bough.config.environment import AGENT_PREFIX
from bough.config.parts import leaves
from bough.config.problems import flag, is_positional
from bough.errors import InputError
from bough.models.resolve import check_name
from bough.trajectories.lines import files

# Settings that name data files or folders, and those that name a single file.
DATA = ("file", "train_file", "eval_file", "test_file", "also", "mix", "mixture", "reset_file")
SINGLE_FILES = ("task_file", "test_task_file", "eval_task_file", "chat_template")


def check_inputs(config: Config) -> None:
    """InputError where an input is missing; several are reported together."""
    problems = list(_problems(config))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError(f"{len(problems)} inputs cannot be used:", problems)
    for address in _values(config, "cluster"):
        from bough.cluster.connection import check_address

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
    from bough.config.corrections import is_server
    from bough.config.evaluation import BASELINES

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
