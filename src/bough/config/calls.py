"""Settings of how a model's messages become calls: the chat template, the longest call."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config

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
