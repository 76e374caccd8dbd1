"""Settings that say how messages become calls."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from bough.config.base import Config


class CallsConfig(Config):
    """How messages become calls."""

    model: str = Field(
        "smollm2",
        description="smollm2, tiny, a local folder, or a hub id such as Qwen/Qwen3-4B-Instruct-2507",
        validation_alias=AliasChoices("model", "model_name_or_path"),
    )
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    max_length: int | None = Field(
        None,
        ge=8,
        description="longest call in tokens; longer prompts lose their oldest whole steps "
        "(default: calls longer than the model's context are dropped)",
    )
    stride: float = Field(
        0.25, ge=0, lt=1, description="share of max_length that is freed at once when old steps are left out"
    )
