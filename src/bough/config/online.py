"""The parts of online training's settings: GRPO in an environment instead of on a file."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config
from bough.config.environment import OptionValues, PlayedTasksConfig
from bough.config.sampling import SamplingConfig


class OnlineEnvironmentConfig(PlayedTasksConfig):
    """An environment to play in instead of a file."""

    name: str | None = Field(  # type: ignore[assignment]  # all others must have one
        None,
        description="play in this environment: sample groups, train on them, sample again (instead of --train-file)",
        json_schema_extra={"flag": "environment"},
    )
    options: OptionValues = Field({}, description="the environment's own settings as key=value")
    split: str = Field("train", description="which tasks to train on")
    task_file: Path | None = Field(None, description="tasks from a JSON Lines file instead of the environment's own")


class OnlineSamplingConfig(SamplingConfig):
    """Sampling parameters."""

    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; the loss uses log-probabilities at this temperature too"
    )


class RolloutsConfig(Config):
    """Groups of attempts, and how often each is trained on."""

    group_size: int = Field(8, ge=2, description="attempts at each task; batch_size is the number of tasks per batch")
    updates: int = Field(1, ge=1, description="optimizer steps per batch of groups: mini-batches")
    passes: int = Field(1, ge=1, description="passes over each batch of groups")
    resample: float = Field(
        2.0,
        ge=1,
        description="limit on the tasks tried to fill a batch with groups whose rewards differ, in batch sizes",
    )
    concurrency: int = Field(32, ge=1, description="episodes in flight")
    max_staleness: int = Field(
        0,
        ge=0,
        description="sample this many batches ahead while the policy trains; calls of older weights are dropped",
    )
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")


class HeldOutTasksConfig(Config):
    """Evaluation on held-out tasks."""

    every: int = Field(
        0,
        ge=0,
        description="batches between evaluations on held-out tasks; 0: never",
        json_schema_extra={"flag": "eval_every"},
    )
    tasks: int = Field(32, ge=1, description="number of held-out tasks", json_schema_extra={"flag": "eval_tasks"})
    split: str = Field("unseen", description="where held-out tasks come from", json_schema_extra={"flag": "eval_split"})
    task_file: Path | None = Field(
        None,
        description="held-out tasks from a JSON Lines file instead",
        json_schema_extra={"flag": "eval_task_file"},
    )
    temperature: float = Field(
        0.0,
        ge=0,
        description="sampling temperature for held-out tasks; 0: greedy",
        json_schema_extra={"flag": "eval_temperature"},
    )


class WatchConfig(Config):
    """When to pause the run."""

    enabled: bool = Field(
        True,
        description="pause when reward rises while held-out success falls, lengths run away or entropy collapses",
        json_schema_extra={"flag": "watch"},
    )
    drop: float = Field(
        0.15,
        gt=0,
        le=1,
        description="held-out success may fall this far below its best",
        json_schema_extra={"flag": "watch_drop"},
    )
    growth: float = Field(
        3.0,
        gt=1,
        description="replies or episodes may grow or shrink by this factor",
        json_schema_extra={"flag": "watch_growth"},
    )
    entropy: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="entropy may fall to this share of its start",
        json_schema_extra={"flag": "watch_entropy"},
    )
    kl: float = Field(
        1.0,
        gt=0,
        description="pause when the divergence from the start policy exceeds this, in nats per token",
        json_schema_extra={"flag": "watch_kl"},
    )


def check_origin(
    what: str,
    train_file: Path | None,
    environment: OnlineEnvironmentConfig,
    held_out: HeldOutTasksConfig,
    max_steps: int | None,
) -> None:
    """Raises ValueError unless training data come either from a file or from playing, apart from held-out tasks."""
    if (train_file is None) == (environment.name is None):
        raise ValueError(f"{what} come from train_file, an environment or an agent: give one of them")
    if environment.name is not None and max_steps is None:
        raise ValueError("max_steps is required with environment: there is always another batch to play")
    if held_out.every and environment.task_file is not None and held_out.task_file is None:
        raise ValueError("eval_every with task_file needs eval_task_file: held-out tasks must not be trained on")
    if held_out.task_file is not None and held_out.task_file == environment.task_file:
        raise ValueError("eval_task_file is task_file: held-out tasks must not be trained on")
