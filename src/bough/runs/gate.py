"""The gate between stages: two evaluations on file, and which model is kept."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import Results


class Gate(Config):
    """What an evaluation asks of a model: to be better than another, beyond chance. Else the other one is kept."""

    alpha: float = Field(0.05, gt=0, lt=1, description="promote at most this share of models that are not better")
    against: str | None = Field(None, description="an earlier evaluation (default: that of the model promoted last)")


def judge(before: Path, after: Path, *, alpha: float) -> Decision:
    """Whether the model evaluated in `after` is better than the one in `before`, beyond chance."""
    old, new = Results.read(before), Results.read(after)
    early = old.stop_width is not None or new.stop_width is not None
    return gate(old.models[-1], new.models[-1], alpha=alpha, sequential=early)
