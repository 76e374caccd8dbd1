"""Settings of episodes: which agent plays, for how long, and how many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bough.config.base import Config
from bough.config.cluster import ClusterConfig
from bough.config.environment import PlayedTasksConfig
from bough.config.report import ReportConfig
from bough.config.sampling import SamplingConfig


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
    key_variable: str = Field(
        "OPENAI_API_KEY", description="the environment variable that contains the API key; the key is never stored"
    )
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")


class CollectConfig(ReportConfig):
    """Plays episodes and records them exactly, with the token ids of every call."""

    environment: PlayedTasksConfig
    agent: AgentConfig = AgentConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    seed: int = Field(0, ge=0, description="random seed of the tasks and of sampling")
    tasks: int = Field(16, ge=1, description="number of tasks")
    attempts: int = Field(1, ge=1, description="attempts at each task")
    output: Path = Field(
        description="the output folder; a stopped collection resumes in it", json_schema_extra={"short": "-o"}
    )
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")
    rescore: int = Field(
        4,
        ge=0,
        description="number of calls whose log-probabilities the trainer computes again, to report the difference",
    )
    overwrite: bool = Field(False, description="delete the episodes in the output folder first")
