"""The gate between stages: two evaluations on file, and which model goes on."""

from __future__ import annotations

from pathlib import Path

from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import Results


def judge(before: Path, after: Path, *, alpha: float) -> Decision:
    """Whether the model evaluated in `after` is really better than the one in `before`."""
    old, new = Results.read(before), Results.read(after)
    return gate(old.models[-1], new.models[-1], alpha=alpha)
