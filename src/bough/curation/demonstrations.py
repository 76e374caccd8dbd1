"""Demonstrations: episodes to imitate, played by an expert or the model itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from bough.config.groups import REWARD_TIMEOUT, REWARDS, RewardWeights
from bough.curation.advantages import group_advantages
from bough.curation.pairs import by_task
from bough.curation.rounds import REWARD
from bough.curation.source import CurationConfig, SourcedTrajectory
from bough.curation.states import actions, task_key
from bough.environments.rubric import score
from bough.ledger import Ledger
from bough.types import Group, Trajectory


class DemosConfig(CurationConfig):
    """Selects the episodes worth imitating."""

    command = "demos"

    reward: str | None = Field(None, description=REWARD)
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)
    min_reward: float | None = Field(None, description="keep episodes with at least this reward")
    longest: int | None = Field(None, ge=1, description="keep episodes with at most this many turns")
    failures: bool = Field(False, description="also keep failures and unknown outcomes; use with --min-reward")
    min_progress: float | None = Field(
        None,
        gt=0,
        le=1,
        description="also keep failures that got at least this far, each up to the turn of its highest progress",
    )
    errors: Literal["keep", "context", "drop"] = Field(
        "context",
        description="invalid actions: train on them (keep), use them as context only, or drop the episode",
    )
    dedupe: Literal["task", "actions", "none"] = Field(
        "task",
        description="duplicates to drop: the same actions on the same task, the same actions on any task, or none",
    )
    per_task: int | None = Field(
        None,
        ge=1,
        description="keep this many episodes per task; prefers success, then progress, then fewer turns",
    )

    @model_validator(mode="after")
    def _some_failures_or_all(self) -> Self:
        if self.failures and self.min_progress is not None:
            raise ValueError("`failures` does not go with `min_progress`: it keeps all of them, whole")
        return self


class GroupsConfig(CurationConfig):
    """Groups the attempts at each task, for GRPO."""

    command = "groups"

    reward: str | None = Field(None, description=REWARD)
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)
    size: int | None = Field(None, ge=2, description="attempts per group; the rest forms another group or is dropped")
    min_size: int = Field(2, ge=1, description="drop groups with fewer scored attempts than this")
    flat: bool = Field(
        False,
        description="also keep groups whose attempts all have the same reward (for advantage state or graph)",
    )


def demonstrations(filed: Sequence[SourcedTrajectory], config: DemosConfig, ledger: Ledger) -> list[Trajectory]:
    """The episodes that pass every filter, in their original order; the ledger counts the dropped ones."""
    good = []
    for number, item in enumerate(filed):
        trajectory, reason = _fit(item.trajectory, config)
        if reason is None:
            good.append((number, item, trajectory))
        else:
            ledger.drop(reason)
    # Of duplicates and of several attempts the best one is kept, and of equally good ones the shortest.
    good.sort(key=lambda entry: (-_reached(entry[2]), len(entry[2].turns), entry[0]))
    seen, of_task, kept = set(), Counter[str](), []
    for number, item, trajectory in good:
        task = task_key(trajectory)
        key = (task if config.dedupe == "task" else "", actions(trajectory.turns))
        if config.dedupe != "none" and key in seen:
            ledger.drop("duplicate")
        elif config.per_task is not None and of_task[task] >= config.per_task:
            ledger.drop("more_than_per_task")
        else:
            ledger.keep()
            seen.add(key)
            of_task[task] += 1
            info = {**trajectory.info, "source": item.place, "rule": "demonstration"}
            kept.append((number, trajectory.model_copy(update={"info": info})))
    return [trajectory for _, trajectory in sorted(kept, key=lambda entry: entry[0])]


def _fit(trajectory: Trajectory, config: DemosConfig) -> tuple[Trajectory, str | None]:
    """The trajectory as it is trained on, and the reason to drop it, if any."""
    if not config.failures and trajectory.success is not True:
        if config.min_progress is None:
            return trajectory, "failure" if trajectory.success is False else "outcome_unknown"
        if _reached(trajectory) < config.min_progress:
            return trajectory, "little_progress"
        # Up to its highest progress: what came after led nowhere, or undid it.
        progress = [turn.progress or 0.0 for turn in trajectory.turns]
        end = progress.index(max(progress)) + 1
        info = {**trajectory.info, "turns_left_out": len(progress) - end}
        trajectory = trajectory.model_copy(update={"turns": trajectory.turns[:end], "info": info})
    if config.min_reward is not None:
        value = score(trajectory, config.reward)
        if value is None or value < config.min_reward:
            return trajectory, "not_scored" if value is None else "low_reward"
    if config.longest is not None and len(trajectory.turns) > config.longest:
        return trajectory, "too_many_turns"
    if any(turn.error for turn in trajectory.turns):
        if config.errors == "drop":
            return trajectory, "has_errors"
        if config.errors == "context":
            # The error is of the reply; a correction of it is worth training on.
            turns = [
                turn.model_copy(update={"trained": turn.trained and (not turn.error or turn.correction is not None)})
                for turn in trajectory.turns
            ]
            trajectory = trajectory.model_copy(update={"turns": turns})
    return trajectory, None if any(turn.trained for turn in trajectory.turns) else "nothing_to_train"


def _reached(trajectory: Trajectory) -> float:
    """The highest progress of an episode; 1 for a success, 0 where the environment reports none."""
    return 1.0 if trajectory.success else max((turn.progress or 0.0 for turn in trajectory.turns), default=0.0)


# Groups for GRPO: the attempts at one task, scored, to be compared with each other.


def groups(filed: Sequence[SourcedTrajectory], config: GroupsConfig, ledger: Ledger) -> list[Group]:
    """One group per task, or several of `size`; groups without a learning signal are dropped.

    An attempt that was not scored stays in its group; advantages leave it out of the
    baseline.
    """
    found = []
    for attempts in by_task(filed).values():
        size = config.size or len(attempts)
        for part in (attempts[begin : begin + size] for begin in range(0, len(attempts), size)):
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
