"""Are the files, models, environments and clusters that a command names there? Checked before heavy imports.

torch and transformers take seconds to import; a misspelt path is reported without them.
What the files contain is checked by the command itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bough.config.base import Config, is_code
from bough.config.groups import AGENT_PREFIX, BASELINES, is_server
from bough.config.parts import leaves
from bough.config.problems import flag, is_positional
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
    def error(check: Callable[[Any], Any], value: Any) -> Iterator[str]:
        try:
            check(value)
        except InputError as problem:
            yield str(problem)

    for name in DATA:
        for path in _values(config, name):
            yield from error(files, path)
    for name in SINGLE_FILES:
        for path in _values(config, name):
            if not Path(path).is_file():
                yield f"{flag(name)} {path}: there is no such file"
    for name in filter(None, _values(config, "environment")):  # evolve has none where fitness is measured on files
        if not is_code(name) and not name.startswith(AGENT_PREFIX):  # the command itself imports the user's own code
            from bough.environments.registry import find_listed

            yield from error(find_listed, name)
    if _values(config, "engine") == ["openai"]:
        return  # a server has models and adapters of its own
    leaf = leaves(type(config)).get("adapter")
    for path in [] if leaf is None or is_positional(leaf.info) else _values(config, "adapter"):
        if not Path(path).is_dir():
            yield f"--adapter {path}: there is no such folder"
    for name in ("model", "by", "teacher"):
        for model in _values(config, name):
            if model not in BASELINES and (name == "model" or not is_server(model)):
                yield from error(check_name, model)


def _values(config: Config, name: str) -> list[Any]:
    leaf = leaves(type(config)).get(name)
    value = leaf.of(config) if leaf else None
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [] if value is None else [value]
