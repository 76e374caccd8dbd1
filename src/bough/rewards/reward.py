"""One reward of a rubric: a function with its settings, its weight and its name.

    def brevity(trajectory: Trajectory) -> float: ...                  # one trajectory
    async def judged(trajectory: Trajectory) -> float: ...             # sync or async
    def rank(attempts: list[Trajectory]) -> list[float]: ...           # all attempts at one task

A function scores whole groups if its first parameter is annotated as a list or sequence,
or is called `attempts`. It returns one value per attempt, in their order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bough import event_loop
from bough.config.rewards import Weight
from bough.errors import BoughError, InputError, describe_failure, did_you_mean
from bough.rewards.bounds import Bounds, bounds_of
from bough.rewards.registry import RewardFunction, find
from bough.types import Trajectory

# Async rewards that run at the same time, such as requests to a judge.
CONCURRENCY = 64


class RewardError(BoughError):
    """A reward function raised an exception; the message has the place in its author's code."""


@dataclass(frozen=True)
class WeightedReward:
    """A reward function with its settings, and its weight. `of_group`: it scores all attempts at a task together."""

    name: str
    weight: float
    function: RewardFunction
    bounds: Bounds | None = None
    of_group: bool = False

    @classmethod
    def of(cls, given: str | RewardFunction, weight: Weight) -> WeightedReward:
        """The reward of a name, or a function as it is. Raises InputError for settings that it does not have."""
        function = find(given) if isinstance(given, str) else given
        # A function goes by its own name, not by its module's or file's.
        name = given.rpartition(":")[2] if isinstance(given, str) else name_of(function)
        settings: dict[str, Any] = dict(weight) if isinstance(weight, Mapping) else {"weight": weight}
        factor = float(settings.pop("weight", 1.0))
        known = parameters(function)
        if unknown := [key for key in settings if key not in known]:
            problems = "1 problem" if len(unknown) == 1 else f"{len(unknown)} problems"
            raise InputError(
                f"the settings of reward {name} have {problems}:",
                [f"{key} is not a setting{did_you_mean(key, ['weight', *known])}" for key in unknown],
            )
        return cls(name, factor, partial(function, **settings), bounds_of(function), scores_groups(function))

    def values(self, arguments: Sequence[Trajectory] | Sequence[list[Trajectory]]) -> list[Any]:
        """What the function returns for each argument; an Exception where it raised one."""
        found = [self._call(argument) for argument in arguments]
        waiting = [place for place, value in enumerate(found) if inspect.isawaitable(value)]
        if waiting:
            results = event_loop.run(_gather([self._wait(found[place]) for place in waiting]))
            for place, result in zip(waiting, results, strict=True):
                found[place] = result
        return found

    def _call(self, argument: Trajectory | list[Trajectory]) -> Any:
        try:
            return self.function(argument)
        except Exception as error:  # one bad reward must not cost the others their work
            return self._error(error)

    async def _wait(self, value: Awaitable[Any]) -> Any:
        try:
            return await value
        except Exception as error:
            return self._error(error)

    def _error(self, error: Exception) -> RewardError:
        found = RewardError(describe_failure(self.name, error))
        found.__cause__ = error
        return found


def name_of(function: RewardFunction) -> str:
    """The name of a function, by which its values are reported. Raises InputError for a lambda."""
    name: str = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise InputError(f"the reward {name} has no name to report it by; define it with def")
    return name


def parameters(function: RewardFunction) -> list[str]:
    """The settings of a reward: its keyword-only arguments."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def scores_groups(function: RewardFunction) -> bool:
    """Whether a function takes all attempts at a task, not one trajectory."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    # Annotations are text where their module has `from __future__ import annotations`.
    annotation = first.annotation if isinstance(first.annotation, str) else str(first.annotation)
    outer = annotation.partition("[")[0].rpartition(".")[2]
    return first.name == "attempts" or outer in ("list", "List", "Sequence") or first.annotation in (list, Sequence)


async def _gather(work: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async with gate:
            return await coroutine

    return await asyncio.gather(*map(one, work))
