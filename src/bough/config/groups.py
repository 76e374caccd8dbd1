"""Settings that say how a command prints its report."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

import yaml
from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, WrapValidator, field_validator, model_validator

from bough.config.base import Config, named, setting
from bough.config.flags import plain_type
from bough.config.yaml_file import read_value

# Agents that are not models.
BASELINES = ("expert", "random")


def is_server(name: str) -> bool:
    """Whether a model is named by the address of a server."""
    return name.startswith(("http://", "https://"))


class ReportConfig(Config):
    """How the report is printed."""

    # Excluded from what is written and compared: it does not change what is computed.
    as_json: bool = Field(
        False,
        exclude=True,
        validation_alias=AliasChoices("as_json", "json"),
        description="print the report as one JSON object on stdout, and nothing else there",
        json_schema_extra={"renamed": True},
    )


# Sampling parameters.


class SamplingConfig(Config):
    """Sampling parameters."""

    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="sample from the most likely tokens with this total probability")
    top_k: int = Field(0, ge=0, description="sample from this many most likely tokens; 0: from all")
    min_p: float = Field(
        0.0, ge=0, lt=1, description="exclude tokens less likely than this fraction of the most likely one"
    )
    max_new_tokens: int = Field(256, ge=1, description="maximum length of a reply in tokens")
    stop: list[str] = Field([], description="end a reply after any of these strings")


# Settings of the environment and its tasks.


def key_values(value: Any) -> Any:
    """`key=value` arguments of the command line, as a mapping; values are read as YAML."""
    if not isinstance(value, list):
        return value
    options = {}
    for word in value:
        key, equals, text = str(word).partition("=")
        if not (key and equals):
            raise ValueError(f"{word!r} must be written as key=value")
        try:
            options[key] = read_value(text) if text else ""
        except yaml.YAMLError:
            options[key] = text
    return options


def _options(value: Any) -> Any:
    """An environment's options; on the command line dashes may stand for underscores."""
    found = key_values(value)
    return {key.replace("-", "_"): one for key, one in found.items()} if isinstance(value, list) else found


# How the name of an environment begins that stands for an agent function.
AGENT_PREFIX = "agent:"
OptionValues = Annotated[dict[str, JsonValue], BeforeValidator(_options)]


class EnvironmentConfig(Config):
    """Environment and tasks."""

    name: str = setting(
        flag="environment", description="a name of `bough env list`, module:Class or path/to/file.py:Class"
    )
    options: OptionValues = Field(
        {}, description="options of the environment as key=value (`bough env list NAME` lists them)"
    )
    split: str = Field("train", description="the split to draw tasks from: train, seen or unseen")
    task_file: Path | None = Field(
        None, description="a JSON Lines file of tasks, instead of the environment's own tasks"
    )


class PlayedTasksConfig(EnvironmentConfig):
    """Environment and tasks."""

    name: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"flag": "environment", "or": "agent"},
    )
    # `--agent X` is `--environment agent:X`: an agent function stands where an environment stands.
    own_agent: str | None = Field(
        None,
        exclude=True,
        validation_alias=AliasChoices("own_agent", "agent"),
        description="your own agent, a function that plays a task against an OpenAI-compatible address: "
        "module:function or path/to/file.py:function (instead of --environment)",
        json_schema_extra={"renamed": True},
    )

    @model_validator(mode="before")
    @classmethod
    def _named_as_environment(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        rest = {key: value for key, value in values.items() if key not in ("own_agent", "agent")}
        agent = values.get("own_agent", values.get("agent"))
        if not agent:
            return rest
        if not isinstance(agent, str):
            raise ValueError("agent must be the name of a function: module:function or path/to/file.py:function")
        if rest.get("name"):
            raise ValueError("give either environment or agent, not both")
        return {**rest, "name": f"{AGENT_PREFIX}{agent}"}


def make_options(options_class: type[Config], values: Mapping[str, JsonValue]) -> Config:
    """An environment's options from the given values; text for a list is split at commas."""
    ready = dict(values)
    for name, info in options_class.model_fields.items():
        value = ready.get(name)
        if isinstance(value, str) and get_origin(plain_type(info.annotation)) is list:
            ready[name] = [part.strip() for part in value.split(",") if part.strip()]
    return options_class(**ready)


# Settings of the rewards of an episode.


def _weight(value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        given = read(value)
        weight = given.get("weight", 1.0) if isinstance(given, dict) else given
        if not isinstance(weight, bool) and isinstance(weight, int | float) and math.isfinite(weight):
            return given
    except ValueError:
        pass
    raise ValueError("its weight must be a number: reward=weight or reward={weight: 1, …}")


Weight = Annotated[float | dict[str, JsonValue], WrapValidator(_weight)]


def _pairs(value: Any) -> Any:
    """`reward=weight` arguments of the command line, as a mapping; a reward alone has the weight 1."""
    return key_values(
        [word if "=" in str(word) else f"{word}=1.0" for word in value] if isinstance(value, list) else value
    )


RewardWeights = Annotated[dict[str, Weight], BeforeValidator(_pairs)]
# What help says of the settings of rewards.
REWARDS = (
    "rewards and their weights, as outcome=1 tool_call=1 'overlong={weight: 1, max_length: 4096}': "
    "outcome, progress, steps, format, mistakes, tool_call, overlong, judge, module:function or "
    "path/to/file.py:function "
    "(default: the environment's own reward)"
)
REWARD_TIMEOUT = "time limit of one reward of a trajectory or group, in seconds; a longer one ends the run"


# Settings of commands that can use several machines.

# The cluster that this machine belongs to, or else one of this machine alone.
AUTO = "auto"
ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


class ClusterConfig(Config):
    """Several machines, through Ray."""

    address: str | None = setting(
        None,
        flag="cluster",
        description="use a Ray cluster: auto (the one that this machine belongs to, or else this machine alone) "
        "or HOST:PORT of its head node; needs pip install 'bough[ray]' (default: this machine, without Ray)",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="with --cluster: number of worker processes, which play episodes, train the members of a "
        "population or do the runs of a sweep (default: as many as the cluster has room for)",
    )
    gpus_per_worker: float | None = Field(
        None,
        ge=0,
        description="with --cluster: GPUs of each worker, such as 1, 0.25 or 0 "
        "(default: 1 where a model plays and the cluster has GPUs)",
    )
    timeout_s: float = setting(
        600,
        flag="cluster_timeout",
        gt=0,
        description="with --cluster: give up after this many seconds without a single worker",
    )

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and value != AUTO and ADDRESS.fullmatch(value) is None:
            raise ValueError("it must be auto or the HOST:PORT of the cluster's head node, such as 10.0.0.1:6379")
        return value

    @field_validator("gpus_per_worker")
    @classmethod
    def _can_be_shared(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError(
                "it must be a whole number, or at most 1: a worker cannot have one GPU and a part of another"
            )
        return value

    @model_validator(mode="after")
    def _needs_a_cluster(self) -> Self:
        fields = {name: info for name, info in type(self).model_fields.items() if name not in ("address", "timeout_s")}
        given = [name for name, info in fields.items() if getattr(self, name) != info.default]
        if self.address is None and given:
            needs = "needs" if len(given) == 1 else "need"
            raise ValueError(f"{named(given, ' and ')} {needs} `cluster`: auto or HOST:PORT")
        return self


class OnlineClusterConfig(ClusterConfig):
    """Several machines, through Ray."""

    learners: int = Field(1, ge=1, description="with --cluster: processes that train, which share each batch")
    swap_mid_episode: bool = Field(
        False,
        description="with --cluster: workers take new weights between two turns instead of between two episodes",
    )

    @property
    def problem_with_files(self) -> str | None:
        """Why a run on data from files cannot have these settings; None if it can."""
        if self.learners == 1:
            return None
        return "`learners` needs `environment`; on data from files, accelerate launch starts several processes"


# Settings of how a model's messages become calls: the chat template, the longest call.

MODEL = "smollm2, tiny, a local folder, or a model on the Hub such as Qwen/Qwen3-4B-Instruct-2507"


class CallsConfig(Config):
    """From messages to tokens."""

    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    max_length: int | None = Field(
        None,
        ge=8,
        description="maximum length of a call in tokens; a longer prompt drops its oldest whole steps "
        "(default: calls longer than the model's context are dropped)",
    )
    stride: float = Field(
        0.25, ge=0, lt=1, description="fraction of max_length to free each time old steps are dropped"
    )


KEY_VARIABLE = "the environment variable that contains the API key; the key is never stored"


# Settings of episodes: which agent plays, for how long, and how many at a time.


class LimitsConfig(Config):
    """Limits of an episode."""

    max_turns: int | None = Field(
        None, ge=1, description="maximum number of turns (default: the environment's own limit)"
    )
    max_repeats: int = Field(
        3,
        ge=0,
        description="end the episode after the same action with the same result this many times in a row; 0: never",
    )
    max_errors: int = Field(5, ge=0, description="end the episode after this many invalid actions in a row; 0: never")
    step_timeout_s: float = Field(60, gt=0, description="time limit of one step of the environment, in seconds")
    episode_timeout_s: float | None = Field(
        None, gt=0, description="time limit of an episode, in seconds (default: none)"
    )


class AgentConfig(Config):
    """The agent."""

    model: str = Field("smollm2", description="a model (as in `bough sft`), expert or random")
    adapter: Path | None = Field(None, description="a LoRA adapter on top of the model")
    engine: Literal["local", "openai", "vllm"] = Field(
        "local",
        description="local: in this process; openai: any OpenAI-compatible server; "
        "vllm: vLLM, in this process or on the server at --base-url",
    )
    base_url: str | None = Field(None, description="address of the server, such as http://127.0.0.1:8000/v1")
    key_variable: str = Field("OPENAI_API_KEY", description=KEY_VARIABLE)
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")


class CollectConfig(ReportConfig):
    """Plays episodes and records them exactly, with the token ids of every call."""

    command = "collect"

    environment: PlayedTasksConfig
    agent: AgentConfig = AgentConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    tasks: int = Field(16, ge=1, description="number of tasks")
    attempts: int = Field(1, ge=1, description="attempts at each task")
    output: Path = setting(short="-o", description="the output folder; a stopped collection resumes in it")
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")
    rescore: int = Field(
        4,
        ge=0,
        description="number of calls whose log-probabilities the trainer computes again, to report the difference",
    )
    overwrite: bool = Field(False, description="delete the episodes in the output folder first")
