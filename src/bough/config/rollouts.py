"""Settings of episodes: who plays, how long, and how many at once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bough.config.base import Config
from bough.config.environment import EnvironmentConfig
from bough.config.sampling import SamplingConfig


class LimitsConfig(Config):
    """When an episode ends that does not end by itself."""

    max_turns: int | None = Field(None, ge=1, description="replies in an episode (default: the world's custom)")
    max_repeats: int = Field(
        3, ge=0, description="the same action with the same result so often in a row ends the episode; 0: never"
    )
    max_errors: int = Field(
        5, ge=0, description="so many replies in a row that the world cannot act on end the episode; 0: never"
    )
    step_timeout_s: float = Field(60, gt=0, description="the world has this long for one step")
    episode_timeout_s: float | None = Field(None, gt=0, description="an episode has this long (default: no limit)")


class AgentConfig(Config):
    """Who plays."""

    model: str = Field("smollm2", description="a model (as in `bough sft`), or expert or random")
    adapter: Path | None = Field(None, description="a LoRA adapter on top of the model")
    engine: Literal["local", "openai", "vllm"] = Field(
        "local", description="local: in this process; openai: any OpenAI-compatible server; vllm: vLLM in this process"
    )
    base_url: str | None = Field(None, description="the server's address, such as http://127.0.0.1:8000/v1")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="the environment variable with the server's key; the key is never written down"
    )
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: on a GPU yes, on a CPU no)")


class CollectConfig(EnvironmentConfig, AgentConfig, SamplingConfig, LimitsConfig):
    """Plays many episodes and keeps every one as it happened, exact tokens included."""

    tasks: int = Field(16, ge=1, description="how many tasks")
    attempts: int = Field(1, ge=1, description="how often each task is tried")
    output: Path = Field(
        description="the run's folder; a run that was stopped goes on in it", json_schema_extra={"short": "-o"}
    )
    concurrency: int = Field(16, ge=1, description="episodes at a time")
    retries: int = Field(3, ge=0, description="how often an episode is played again when the world or engine broke")
    rescore: int = Field(
        4, ge=0, description="calls whose log-probabilities are computed again at the end, to report the gap"
    )
    overwrite: bool = Field(False, description="forget what is in the folder")
