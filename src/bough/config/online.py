"""The settings of training in an environment instead of on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from bough.config.base import Config, setting
from bough.config.groups import (
    KEY_VARIABLE,
    REWARD_TIMEOUT,
    REWARDS,
    LimitsConfig,
    OnlineClusterConfig,
    OptionValues,
    PlayedTasksConfig,
    RewardWeights,
    SamplingConfig,
)
from bough.config.training import TrainingConfig


class OnlineEnvironmentConfig(PlayedTasksConfig):
    """An environment to play in instead of a file."""

    name: str | None = setting(  # type: ignore[assignment]  # all others must have one
        None,
        flag="environment",
        description="play in this environment: sample groups, train on them, sample again (instead of --train-file)",
    )
    options: OptionValues = Field({}, description="the environment's own settings as key=value")
    split: str = Field("train", description="which tasks to train on")
    task_file: Path | None = Field(None, description="tasks from a JSON Lines file instead of the environment's own")


class OnlineSamplingConfig(SamplingConfig):
    """Sampling parameters."""

    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; the loss uses log-probabilities at this temperature too"
    )


class SamplerConfig(Config):
    """The engine that samples while the policy trains."""

    engine: Literal["local", "vllm"] = Field(
        "local",
        description="local: samples from the weights in training; "
        "vllm: vLLM, in this process or on the server at --base-url, with new weights for every batch",
    )
    base_url: str | None = Field(
        None, description="address of a vLLM server that takes adapters, such as http://127.0.0.1:8000/v1"
    )
    key_variable: str = Field("OPENAI_API_KEY", description=KEY_VARIABLE)
    options: OptionValues = setting(
        {},
        flag="engine_options",
        description="engine arguments of vLLM in this process as key=value, such as gpu_memory_utilization=0.5",
    )

    @model_validator(mode="after")
    def _of_vllm(self) -> Self:
        if self.engine != "vllm" and (self.base_url is not None or self.options):
            given = "base_url" if self.base_url is not None else "engine_options"
            raise ValueError(f"`{given}` needs `engine` vllm")
        if self.base_url is not None and self.options:
            raise ValueError("`engine_options` are for vLLM in this process; a server has its own: leave one out")
        return self

    def problem(self, sampling: OnlineSamplingConfig, *, lora: bool, qlora: bool) -> str | None:
        """Why the engine cannot sample for this training."""
        if self.engine != "vllm":
            return None
        if self.base_url is not None and not lora:
            return "`engine` vllm with `base_url` needs `use_lora`: a server takes new adapters, but no other weights"
        if qlora:
            return "`engine` vllm does not go with `qlora`: it would sample from weights that are not quantised"
        if sampling.temperature != 1 and (sampling.top_p < 1 or sampling.top_k or sampling.min_p):
            return (
                f"`temperature` is {sampling.temperature:g}: with `top_p`, `top_k` or `min_p`, vLLM gives "
                "log-probabilities only at temperature 1; use one or the other, or `engine` local"
            )
        return None


class RolloutsConfig(Config):
    """Groups of attempts, and how often each is trained on."""

    group_size: int = Field(8, ge=2, description="attempts at each task; batch_size is the number of tasks per batch")
    updates: int = Field(1, ge=1, description="optimizer steps per batch of groups: mini-batches")
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
    """Evaluation on held-out tasks, and when to pause."""

    every: int = setting(
        0, flag="eval_every", ge=0, description="batches between evaluations on held-out tasks; 0: never"
    )
    tasks: int = setting(32, flag="eval_tasks", ge=1, description="number of held-out tasks")
    split: str = setting("unseen", flag="eval_split", description="where held-out tasks come from")
    task_file: Path | None = setting(
        None, flag="eval_task_file", description="held-out tasks from a JSON Lines file instead"
    )
    temperature: float = setting(
        0.0, flag="eval_temperature", ge=0, description="sampling temperature for held-out tasks; 0: greedy"
    )
    watch: bool = Field(
        True,
        description="pause when reward rises while held-out success falls, lengths run away, entropy collapses or the "
        "policy is more than 1 nat per token away from its start",
    )


class OnlineConfig(TrainingConfig):
    """Rewards of the episodes that are played.

    These are the settings of every method that samples while it trains; each adds its own.
    """

    environment: OnlineEnvironmentConfig = OnlineEnvironmentConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    held_out: HeldOutTasksConfig = HeldOutTasksConfig()
    sampling: OnlineSamplingConfig = OnlineSamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: OnlineClusterConfig = OnlineClusterConfig()
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)

    @property
    def sampled_by(self) -> SamplerConfig:
        """The local engine, unless a method has settings for another."""
        return SamplerConfig()

    @property
    def learnt_reward(self) -> str | None:
        """The reward that is trained on; None for the outcome."""
        return "total" if self.rewards else None

    @model_validator(mode="after")
    def _a_file_or_an_environment(self) -> Self:
        train_file, environment, held_out = self.data.train_file, self.environment, self.held_out
        if (train_file is None) == (environment.name is None):
            raise ValueError("the data come from `train_file`, `environment` or `agent`: give one of them")
        if environment.name is not None and self.optimizer.max_steps is None:
            raise ValueError("`max_steps` is required with `environment`: there is always another batch to play")
        if held_out.every and environment.task_file is not None and held_out.task_file is None:
            raise ValueError(
                "`eval_every` with `task_file` needs `eval_task_file`: held-out tasks must not be trained on"
            )
        if held_out.task_file is not None and held_out.task_file == environment.task_file:
            raise ValueError("`eval_task_file` is `task_file`: held-out tasks must not be trained on")
        return self
