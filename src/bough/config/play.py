"""Settings of `bough play` and `bough env`."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from bough.config.base import Config
from bough.config.groups import (
    MODEL,
    AgentConfig,
    EnvironmentConfig,
    LimitsConfig,
    OptionValues,
    ReportConfig,
    SamplingConfig,
)


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


# Settings of `bough serve`, and of `bough.recorded`.


class ServedModelConfig(AgentConfig):
    """The model."""

    model: str = Field("smollm2", description=f"{MODEL}, or the folder of an adapter")


class ServeConfig(ReportConfig):
    """Serves a model over an OpenAI-compatible address, and records every call with its exact tokens.

    A session is the path /s/NAME/v1 or the header X-Session-ID. POST /s/NAME/end with
    {"success": true, "reward": 0.7, "task": "…"} closes it into a trajectory.
    """

    agent: ServedModelConfig = ServedModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    record: Path = Field(description="the folder for what is recorded; a stopped server resumes in it")
    host: str = Field("127.0.0.1", description="the address to listen on; any but loopback needs a key")
    port: int = Field(8000, ge=0, le=65535, description="the port to listen on; 0: any free port")
    access_key_variable: str = Field(
        "BOUGH_SERVE_KEY",
        description="the environment variable that contains the key that clients must send, if there is one",
    )
    session_timeout_s: float = Field(
        1800, gt=0, description="close a session that was not used for this many seconds, with an unknown outcome"
    )
    seed: int = Field(0, ge=0, description="random seed of requests that give none")


class RecordedConfig(Config):
    """Plays one task with an agent function and records it."""

    agent: ServedModelConfig = ServedModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    seed: int = Field(0, ge=0, description="random seed of sampling")


# Settings of `bough view`.


class ViewConfig(ReportConfig):
    """Serves a run folder or a data file as a local web page, or exports it to a single file."""

    path: Path = Field(
        Path("runs"),
        description="a run folder, a folder of runs, or a data file",
        json_schema_extra={"positional": True},
    )
    model: str | None = Field(
        None, description="the model whose tokens are shown (default: the one in the folder's settings)"
    )
    port: int = Field(7788, ge=0, le=65535, description="the port to listen on; 0: any free port")
    host: str = Field("127.0.0.1", description="the address to listen on; any but loopback needs --allow-remote")
    allow_remote: bool = Field(False, description="allow access from other machines, with a token")
    token: str | None = Field(None, description="the access token (default: a random one)")
    export: Path | None = Field(None, description="write the page to this .html file instead of serving it")
    max_records: int = Field(300, ge=1, description="maximum number of records of each kind in an exported page")
    overwrite: bool = Field(False, description="replace the exported file if it exists")
