"""How the next token is drawn."""

from __future__ import annotations

from pydantic import Field

from bough.config.base import Config


class SamplingConfig(Config):
    """Sampling, named as everybody names it."""

    temperature: float = Field(1.0, ge=0, description="0 always takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1, description="draw from the likeliest tokens that hold this much probability")
    top_k: int = Field(0, ge=0, description="draw from this many likeliest tokens; 0: from all")
    min_p: float = Field(0.0, ge=0, lt=1, description="leave out tokens less likely than this share of the likeliest")
    max_new_tokens: int = Field(256, ge=1, description="longest reply, in tokens")
    stop: list[str] = Field([], description="end a reply behind any of these texts")
