"""The gate after an evaluation: keeps the better of two models."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import Results


class Gate(Config):
    """Requires a model to be significantly better than an earlier one; otherwise the earlier one is kept."""

    alpha: float = Field(
        0.05, gt=0, lt=1, description="significance level: the probability of promoting a model that is not better"
    )
    against: str | None = Field(
        None, description="the earlier evaluation to compare with (default: that of the model promoted last)"
    )
    by_type: bool = Field(
        False, description="also refuse a model that is significantly worse on any type of task (Holm's correction)"
    )


def judge(before: Path, after: Path, given: Gate) -> Decision:
    """Whether the model evaluated in `after` is significantly better than the one in `before`."""
    old, new = Results.read(before), Results.read(after)
    early = old.stop_width is not None or new.stop_width is not None
    return gate(old.models[-1], new.models[-1], alpha=given.alpha, sequential=early, by_type=given.by_type)
