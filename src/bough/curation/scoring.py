"""Scoring recorded trajectories with the requested rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bough.config.rewards import Weight
from bough.curation.source import SourcedTrajectory
from bough.rewards.reward import TIMEOUT_S
from bough.rewards.rubric import TOTAL, Rubric


def scored(
    filed: Sequence[SourcedTrajectory], rewards: Mapping[str, Weight], timeout_s: float = TIMEOUT_S
) -> tuple[list[SourcedTrajectory], Rubric]:
    """The trajectories with every reward and their total, and the rubric, which knows what failed."""
    rubric = Rubric(rewards, timeout_s=timeout_s)
    found = rubric.score_all([item.trajectory for item in filed])
    return [replace(item, trajectory=trajectory) for item, trajectory in zip(filed, found, strict=True)], rubric


def means(filed: Sequence[SourcedTrajectory], rubric: Rubric) -> dict[str, float | None]:
    """The mean of each reward of the rubric and of the total, over the trajectories that have it."""
    names = [*(part.name for part in rubric.parts), TOTAL]
    return {name: _mean(item.trajectory.rewards[name] for item in filed) for name in names}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
