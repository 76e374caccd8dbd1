"""Settings of `bough play` and `bough env`."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from bough.config.base import Config
from bough.config.environment import EnvironmentConfig, OptionValues
from bough.config.report import ReportConfig


class PlayedEnvironmentConfig(EnvironmentConfig):
    """Environment and tasks."""

    name: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"flag": "environment", "positional": True},
    )


class PlayConfig(Config):
    """Lets you play in an environment, or replays actions from a file.

    At the prompt: type an action; an empty line lists the possible actions; Ctrl-D ends the episode.
    """

    environment: PlayedEnvironmentConfig
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    task: str | None = Field(None, description="the number of a task, counted from 0, or its id (default: the first)")
    game: Path | None = Field(None, description="a game file to play (household: an official game.tw-pddl)")
    actions: Path | None = Field(
        None, description="a file of actions, one per line, as plain text or JSON strings; - reads standard input"
    )
    json_lines: bool = Field(
        False,
        validation_alias=AliasChoices("json_lines", "json"),
        description="print one JSON object for the start and one for each step",
    )


class EnvListConfig(ReportConfig):
    """Lists the environments, or the options of one of them."""

    environment: str | None = Field(
        None, description="show the options of this environment", json_schema_extra={"positional": True}
    )


class EnvCheckConfig(ReportConfig):
    """Checks an environment against the contract: determinism, replay, bad input, close."""

    environment: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"positional": True},
    )
    options: OptionValues = Field({}, description="options of the environment as key=value")
    task_file: Path | None = Field(
        None, description="a JSON Lines file of tasks, instead of the environment's own tasks"
    )
    tasks: int = Field(5, ge=1, description="number of tasks to check")
    seed: int = Field(0, ge=0, description="random seed of the tasks")


class EnvNewConfig(ReportConfig):
    """Writes the files of a new environment: the class, its test and a recipe that trains in it."""

    name: str = Field(description="name of the environment, such as shop", json_schema_extra={"positional": True})
    output: Path = Field(Path(), description="folder in which a folder of that name is made")


class EnvSetupConfig(ReportConfig):
    """Installs what an environment needs besides Python packages (web: a browser)."""

    environment: str = Field(description="the environment", json_schema_extra={"positional": True})
