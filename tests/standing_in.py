"""Another function in place of a command's, for tests of what calls commands."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from bough.commands import table


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[Any], int | None]) -> None:
    """Lets `run` do the work of the command `name`."""
    commands = import_module(table.TABLE[name].module).COMMANDS
    monkeypatch.setitem(commands, name, replace(commands[name], run=run))
