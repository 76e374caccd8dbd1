"""Settings of `bough serve`, and of `bough.recorded`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config
from bough.config.calls import MODEL
from bough.config.report import ReportConfig
from bough.config.rollouts import AgentConfig, LimitsConfig
from bough.config.sampling import SamplingConfig


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
