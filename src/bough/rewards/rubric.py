"""A rubric: which rewards count, and how much each.

    rubric = Rubric({"outcome": 1.0, "tool_call": 1.0, "overlong": {"weight": 1.0, "max_length": 4096}})
    scored = rubric.score(trajectory)      # scored.rewards: each by its name, and their weighted sum, "total"

A reward that cannot be computed is None, never 0, and makes the total None: whoever
compares attempts leaves such a trajectory out. A reward outside its declared range
(`rewards/bounds.py`) stops the run. A reward of weight 0 is only looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from bough.config.rewards import Weight
from bough.errors import InputError, RewardRangeError, describe_failure, did_you_mean
from bough.rewards.bounds import Bounds, bounds_of
from bough.rewards.registry import Reward, find, parameters
from bough.types import Trajectory

TOTAL = "total"


@dataclass(frozen=True)
class WeightedReward:
    """One reward with its parameters set, and its weight."""

    name: str
    weight: float
    reward: Reward
    bounds: Bounds | None = None


class Rubric:
    """Weighs rewards. `failed` counts what could not be computed by reward, `why` has an error message of each."""

    def __init__(self, rewards: Mapping[str, Weight]) -> None:
        self.parts = [_part(name, weight) for name, weight in rewards.items()]
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names) or TOTAL in names:
            raise InputError(
                f"the rewards are {', '.join(names) or 'none'}; each needs a name of its own, and none is called total"
            )
        self.failed: Counter[str] = Counter()
        self.why: dict[str, str] = {}

    def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with every reward of the rubric and their weighted sum."""
        values = {part.name: self._value(part, trajectory) for part in self.parts}
        counted = [(part.weight, values[part.name]) for part in self.parts if part.weight]
        total = None if any(value is None for _, value in counted) else sum(w * (value or 0.0) for w, value in counted)
        return trajectory.model_copy(update={"rewards": {**trajectory.rewards, **values, TOTAL: total}})

    def to_json(self) -> dict[str, Any]:
        """What could not be computed, for a report."""
        return {name: {"failed": count, "why": self.why[name]} for name, count in self.failed.most_common()}

    def _value(self, part: WeightedReward, trajectory: Trajectory) -> float | None:
        try:
            value = part.reward(trajectory)
            if value is None:
                raise ValueError("it cannot be told for this trajectory")
            if not isinstance(value, Real) or not math.isfinite(value):
                raise TypeError(f"it gave {value!r:.100}; a reward is a finite number or None")
        except Exception as error:  # one bad reward must not cost the others their work
            self.failed[part.name] += 1
            self.why.setdefault(part.name, f"{trajectory.id}: {describe_failure(part.name, error)}")
            return None
        if part.bounds is not None and not part.bounds[0] <= value <= part.bounds[1]:
            raise RewardRangeError(f"the reward {part.name}", trajectory.task.id, float(value), part.bounds)
        return float(value)


def _part(name: str, given: Weight) -> WeightedReward:
    settings: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"weight": given}
    weight = float(settings.pop("weight", 1.0))
    reward = find(name)
    known = parameters(reward)
    if unknown := [key for key in settings if key not in known]:
        raise InputError(
            f"the settings of reward {name} have {'1 problem' if len(unknown) == 1 else f'{len(unknown)} problems'}:",
            [f"{key} is not a setting{did_you_mean(key, ['weight', *known])}" for key in unknown],
        )
    # A function of one's own goes by its own name, not by its place.
    return WeightedReward(name.rpartition(":")[2], weight, partial(reward, **settings), bounds_of(reward))
