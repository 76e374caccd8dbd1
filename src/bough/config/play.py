"""Settings of `bough play` and `bough env`."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from bough.config.base import Config
from bough.config.environment import EnvironmentConfig, OptionValues


class PlayConfig(EnvironmentConfig):
    """Play in a world yourself, or replay actions from a file.

    At the prompt: write an action; an empty line lists what can be done; Ctrl-D ends.
    """

    environment: str = Field(
        description="household, web, interpreter, a plug-in, module:Class or path/to/file.py:Class",
        json_schema_extra={"positional": True},
    )
    task: str | None = Field(None, description="a task's number, counted from 0, or its id (default: the first)")
    game: Path | None = Field(None, description="a game file to play (household: an official game.tw-pddl)")
    actions: Path | None = Field(
        None, description="actions, one a line, as plain text or JSON strings; - reads them from standard input"
    )
    json_lines: bool = Field(
        False,
        validation_alias=AliasChoices("json_lines", "json"),
        description="print one JSON object for the start and one for each step",
    )


class EnvListConfig(Config):
    """Which worlds there are, or what one of them can be asked for."""

    environment: str | None = Field(
        None, description="show this world's options", json_schema_extra={"positional": True}
    )


class EnvCheckConfig(Config):
    """Tests whether an environment keeps the contract: determinism, replay, bad input, close."""

    environment: str = Field(
        description="a name, module:Class or path/to/file.py:Class", json_schema_extra={"positional": True}
    )
    options: OptionValues = Field({}, description="the world's own settings as key=value")
    task_file: Path | None = Field(None, description="tasks from a JSON Lines file instead of the world's own")
    tasks: int = Field(5, ge=1, description="how many tasks to try")
    seed: int = Field(0, ge=0, description="fixes the tasks")


class EnvSetupConfig(Config):
    """Installs what a world needs besides Python packages (web: a browser)."""

    environment: str = Field(description="the world", json_schema_extra={"positional": True})
