"""Sampling parameters."""

from __future__ import annotations

from pydantic import Field

from bough.config.base import Config


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
