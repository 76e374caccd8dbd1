"""Groups for GRPO: the attempts at one task, scored, to be compared with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bough.config.curation import GroupsConfig
from bough.curation.episode_pairs import by_task
from bough.curation.source import SourcedTrajectory
from bough.ledger import Ledger
from bough.methods.advantages import group_advantages
from bough.rewards.score import score
from bough.types import Group


def groups(filed: Sequence[SourcedTrajectory], config: GroupsConfig, ledger: Ledger) -> list[Group]:
    """One group per task, or several of `size`; groups without a learning signal are dropped.

    An attempt that was not scored stays in its group; advantages leave it out of the
    baseline.
    """
    found = []
    for attempts in by_task(filed).values():
        for part in _parts(attempts, config.size):
            values = [score(item.trajectory, config.reward) for item in part]
            scored = sum(value is not None for value in values)
            if (config.size is not None and len(part) < config.size) or scored < config.min_size:
                ledger.drop("too_few_scored" if scored < config.min_size else "too_few_attempts", len(part))
                continue
            flat = group_advantages(values).dropped
            if flat is not None and not config.flat:
                ledger.drop(flat, len(part))
                continue
            ledger.keep(len(part))
            info = {"sources": [item.place for item in part], "rule": "group", "scored": scored}
            found.append(
                Group.model_validate(
                    {"task": part[0].trajectory.task, "attempts": [item.trajectory for item in part], "info": info}
                )
            )
    return found


def _parts(attempts: list[SourcedTrajectory], size: int | None) -> Iterator[list[SourcedTrajectory]]:
    step = size or len(attempts)
    for begin in range(0, len(attempts), step):
        yield attempts[begin : begin + step]
