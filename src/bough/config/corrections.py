"""Settings of `bough corrections`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bough.config.base import Config
from bough.config.curation import CurationConfig
from bough.config.rollouts import AgentConfig
from bough.config.sampling import SamplingConfig

EXPERT = "expert"


def is_server(name: str) -> bool:
    """Whether a labeller is named by the address of a server."""
    return name.startswith(("http://", "https://"))


class LabelSamplingConfig(SamplingConfig):
    """Sampling parameters of a model that labels."""

    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")


class LabellerConfig(Config):
    """The model or server that labels."""

    engine: Literal["local", "vllm"] = Field("local", description="where a model runs: in this process, or in vLLM")
    server_model: str = Field("", description="name of the model on the server (default: the only one it has)")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="the environment variable that contains the API key; the key is never stored"
    )
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")

    def agent(self, by: str) -> AgentConfig:
        """The agent that `by` names."""
        common = {"key_variable": self.key_variable, "chat_template": self.chat_template, "bf16": self.bf16}
        if is_server(by):
            model = {"model": self.server_model} if self.server_model else {}
            return AgentConfig(engine="openai", base_url=by, **model, **common)
        return AgentConfig(engine=self.engine, model=by, **common)


class CorrectionsConfig(CurationConfig):
    """Labels every turn of the agent's own episodes with what an expert or a stronger model would have replied."""

    by: str = Field(
        EXPERT,
        description="who labels: expert (the environment's own), a model, or the address of an OpenAI-like server",
    )
    where: Literal["differ", "everywhere"] = Field(
        "differ",
        description="train on the labels where they take another action than the agent did, or everywhere",
    )
    max_same_labels: int = Field(
        2,
        ge=1,
        description="train on the same label at most this many times in a row: an agent that repeats its mistake "
        "would otherwise count it at every turn",
    )
    mix: list[Path] = Field(
        [],
        description="files to add to the output unchanged: demonstrations, or the corrections of earlier rounds",
    )
    mix_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="sample from --mix so that it makes up at most this fraction of the episodes (default: all of it)",
    )
    labeller: LabellerConfig = LabellerConfig()
    sampling: LabelSamplingConfig = LabelSamplingConfig()
    environment: str | None = Field(
        None, description="the environment to replay the episodes in (default: the one that each task names)"
    )
    concurrency: int = Field(8, ge=1, description="episodes labelled at the same time")
    seed: int = Field(0, ge=0, description="random seed of sampling and of --mix-share")
