"""A rubric: which rewards count, and how much each.

    rubric = Rubric({"outcome": 1.0, "overlong": {"weight": 1.0, "max_length": 4096}, my_reward: 0.5})
    scored = rubric.score(trajectory)      # scored.rewards: each by its name, and their weighted sum, "total"
    scored = rubric.score_all(attempts)    # the same for many; rewards of groups compare attempts at one task

A reward that cannot be computed is None, never 0, and makes the total None: such a
trajectory is left out where attempts are compared. Where the agent's words are the reason
(it talked a judge out of an answer), it is the worst value of the reward's range instead,
and counted. A reward outside its declared range
(`rewards/bounds.py`) stops the run, and so does one that takes longer than `timeout_s`. A
reward of weight 0 is reported but does not count.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bough.config.rewards import Weight
from bough.errors import InputError, RewardRangeError, describe_failure, short_repr
from bough.metrics import is_finite
from bough.rewards.bounds import AgentFaultError
from bough.rewards.registry import RewardFunction
from bough.rewards.reward import TIMEOUT_S, RewardError, WeightedReward
from bough.types import Trajectory

log = logging.getLogger(__name__)
TOTAL = "total"


class Rubric:
    """Weights rewards, given by name or as functions.

    `failed` counts what could not be computed by reward, `why` has one error message of each. `lowest` counts
    what got the worst value because the agent's words prevented another.
    """

    def __init__(
        self, rewards: Mapping[Any, Weight] | Iterable[str | RewardFunction], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.timeout_s = timeout_s
        weights = rewards if isinstance(rewards, Mapping) else dict.fromkeys(rewards, 1.0)
        self.parts = [WeightedReward.of(given, weight) for given, weight in weights.items()]
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names) or TOTAL in names:
            raise InputError(
                f"the rewards are {', '.join(names) or 'none'}; each needs a name of its own, and none is called total"
            )
        self.failed: Counter[str] = Counter()
        self.why: dict[str, str] = {}
        self.lowest: Counter[str] = Counter()
        self._lowest_why: dict[str, str] = {}
        self._warned: set[str] = set()

    def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with every reward and their weighted sum. Raises InputError for rewards of groups."""
        if of_groups := [part.name for part in self.parts if part.of_group]:
            raise InputError(f"the reward {of_groups[0]} compares attempts; score them together, with score_all")
        return self.score_all([trajectory])[0]

    def score_all(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories, in their order, with every reward; those of one task are one group."""
        values = {part.name: self._values(part, trajectories) for part in self.parts}
        return [
            self._with_total(trajectory, {name: found[place] for name, found in values.items()})
            for place, trajectory in enumerate(trajectories)
        ]

    def to_json(self) -> dict[str, Any]:
        """What could not be computed, for a report."""
        return {name: {"failed": count, "why": self.why[name]} for name, count in self.failed.most_common()}

    def lowest_to_json(self) -> dict[str, Any]:
        """What got the worst value, for a report."""
        return {name: {"attempts": count, "why": self._lowest_why[name]} for name, count in self.lowest.most_common()}

    def costs(self) -> dict[str, dict[str, int]]:
        """What rewards that ask a model have cost: requests, tokens, answers found on disk, failures, worst values."""
        found = {part.name: part.costs() for part in self.parts}
        return {
            name: costs | ({"lowest": self.lowest[name]} if self.lowest[name] else {})
            for name, costs in found.items()
            if costs
        }

    def _with_total(self, trajectory: Trajectory, values: dict[str, float | None]) -> Trajectory:
        counted = [(part.weight, values[part.name]) for part in self.parts if part.weight]
        total = None if any(value is None for _, value in counted) else sum(w * (value or 0.0) for w, value in counted)
        if not is_finite(total):  # finite rewards may have a sum or a product that is not
            total = None
        return trajectory.model_copy(update={"rewards": {**trajectory.rewards, **values, TOTAL: total}})

    def _values(self, part: WeightedReward, trajectories: Sequence[Trajectory]) -> list[float | None]:
        if not part.of_group:
            found = part.values(trajectories, self.timeout_s)
            return [self._checked(part, *pair) for pair in zip(trajectories, found, strict=True)]
        groups = _groups(trajectories)
        results = part.values([[trajectories[place] for place in group] for group in groups], self.timeout_s)
        values: list[float | None] = [None] * len(trajectories)
        for group, result in zip(groups, results, strict=True):
            for place, value in zip(group, _per_attempt(result, len(group)), strict=True):
                values[place] = self._checked(part, trajectories[place], value)
        return values

    def _checked(self, part: WeightedReward, trajectory: Trajectory, value: Any) -> float | None:
        """The value of a reward as a number; None and counted where there is none."""
        problem = _problem(value)
        if isinstance(value, RewardError) and isinstance(value.__cause__, AgentFaultError) and part.bounds is not None:
            self.lowest[part.name] += 1
            self._lowest_why.setdefault(part.name, f"{trajectory.id}: {str(value).splitlines()[0]}")
            return part.bounds[part.weight < 0]  # a penalty is worst at the upper end
        if problem is not None:
            if value is not None and part.name not in self._warned:
                self._warned.add(part.name)
                log.warning("the reward %s", problem)
            self.failed[part.name] += 1
            self.why.setdefault(part.name, f"{trajectory.id}: {problem.splitlines()[0]}")
            return None
        if part.bounds is not None and not part.bounds[0] <= value <= part.bounds[1]:
            raise RewardRangeError(f"the reward {part.name}", trajectory.task.id, float(value), part.bounds)
        return float(value)


def _groups(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """The places of the attempts at each task."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, trajectory in enumerate(trajectories):
        task = trajectory.task
        groups.setdefault((task.environment, task.id, task.seed), []).append(place)
    return list(groups.values())


def _per_attempt(result: Any, count: int) -> Sequence[Any]:
    """A group's result as one value per attempt; the same error for all where it is none."""
    if isinstance(result, Exception):
        return [result] * count
    if not isinstance(result, Sequence) or isinstance(result, str | bytes | bytearray) or len(result) != count:
        returned = f"it returned {short_repr(result)} for {count} attempts"
        wrong = f"{returned}; a reward of a group returns one value per attempt"
        return [TypeError(wrong)] * count
    try:
        return [result[place] for place in range(count)]
    except Exception as error:  # a sequence of the author's own
        return [RewardError(describe_failure("it returned a sequence that", error))] * count


def _problem(value: Any) -> str | None:
    """Why a value is not a reward; None if it is one."""
    if value is None:
        return "it is not known for this trajectory"
    if isinstance(value, Exception):
        return str(value)
    if not isinstance(value, bool) and not is_finite(value):
        return f"it returned {short_repr(value)}; a reward is a finite number or None"
    return None
