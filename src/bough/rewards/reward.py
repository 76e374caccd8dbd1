"""One reward of a rubric: a function with its settings, its weight and its name.

    def brevity(trajectory: Trajectory) -> float: ...                  # one trajectory
    async def judged(trajectory: Trajectory) -> float: ...             # sync or async
    def rank(attempts: list[Trajectory]) -> list[float]: ...           # all attempts at one task

A function scores whole groups if its first parameter is annotated as a list or sequence,
or is called `attempts`. It returns one value per attempt, in their order.

A function gets copies, so that it cannot change the records. What it raises is a failure
of this one value; a function that hangs ends the run, because no value would ever come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bough import event_loop
from bough.config.rewards import Weight
from bough.errors import BoughError, InputError, describe_failure, did_you_mean, with_frames
from bough.plural import plural
from bough.rewards.bounds import Bounds, bounds_of
from bough.rewards.own_copy import own_copy
from bough.rewards.registry import REWARDS, RewardFunction, find
from bough.rewards.stateful import StatefulReward
from bough.rewards.watchdog import TimeUpError, Watchdog
from bough.types import Trajectory

# Async rewards that run at the same time, such as requests to a judge.
CONCURRENCY = 64
TIMEOUT_S = 60.0
GRACE_S = 10.0


class RewardError(BoughError):
    """A reward function raised an exception; the message has the place in its author's code."""


class RewardTimeoutError(BoughError):
    """A reward function took too long; the message has the place in its author's code where it was."""


@dataclass(frozen=True)
class WeightedReward:
    """A reward function with its settings, and its weight.

    `of_group`: it scores all attempts at a task together. `built_in`: it is Bough's and needs no copies.
    """

    name: str
    weight: float
    function: RewardFunction
    bounds: Bounds | None = None
    of_group: bool = False
    built_in: bool = False

    @classmethod
    def of(cls, given: str | RewardFunction, weight: Weight) -> WeightedReward:
        """The reward of a name, or a function as it is. Raises InputError for settings that it does not have."""
        function = find(given) if isinstance(given, str) else given
        # A function goes by its own name, not by its module's or file's.
        name = given.rpartition(":")[2] if isinstance(given, str) else name_of(function)
        _check_callable(function, name)
        settings: dict[str, Any] = dict(weight) if isinstance(weight, Mapping) else {"weight": weight}
        factor = float(settings.pop("weight", 1.0))
        known = parameters(function)
        if unknown := [key for key in settings if key not in known]:
            problems = plural(len(unknown), "problem")
            raise InputError(
                f"the settings of reward {name} have {problems}:",
                [f"{key} is not a setting{did_you_mean(key, ['weight', *known])}" for key in unknown],
            )
        built_in = function in REWARDS.values()
        made = function(**settings) if _is_stateful(function) else partial(function, **settings)
        return cls(name, factor, made, bounds_of(function), scores_groups(function), built_in)

    def costs(self) -> dict[str, int]:
        """What the values so far have cost, where the reward counts that."""
        return self.function.costs() if isinstance(self.function, StatefulReward) else {}

    def values(
        self, arguments: Sequence[Trajectory] | Sequence[list[Trajectory]], timeout_s: float = TIMEOUT_S
    ) -> list[Any]:
        """What the function returns for each argument; a RewardError where it raised an exception.

        Raises RewardTimeoutError where one takes longer than `timeout_s`. A reward with a time limit of its
        own, after which its value is only absent, gets at least that long.
        """
        if isinstance(self.function, StatefulReward):
            timeout_s = max(timeout_s, self.function.timeout_s + GRACE_S)
        with Watchdog(timeout_s) as watchdog:
            found = [self._call(argument if self.built_in else _copied(argument), watchdog) for argument in arguments]
        waiting = [place for place, value in enumerate(found) if inspect.isawaitable(value)]
        if waiting:
            results = event_loop.run(self._gather([found[place] for place in waiting], timeout_s))
            for place, result in zip(waiting, results, strict=True):
                found[place] = result
        return found

    def _call(self, argument: Trajectory | list[Trajectory], watchdog: Watchdog) -> Any:
        try:
            watchdog.restart()
            try:
                return self.function(argument)
            finally:
                watchdog.rest()
        except TimeUpError as error:
            raise self._timeout(watchdog.timeout_s, error) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # one bad reward must not cost the others their work, nor exit the process
            return self._error(error)

    async def _gather(self, values: list[Awaitable[Any]], timeout_s: float) -> list[Any]:
        """The results of async rewards. The watchdog notices one that blocks the event loop."""
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(value: Awaitable[Any]) -> Any:
            async with gate:
                return await self._wait(value, timeout_s)

        async def beat() -> None:
            while True:
                watchdog.restart()
                await asyncio.sleep(timeout_s / 4)

        with Watchdog(timeout_s) as watchdog:
            beating = asyncio.create_task(beat())
            try:
                return await asyncio.gather(*map(one, values))
            finally:
                beating.cancel()

    async def _wait(self, value: Awaitable[Any], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await value
        except TimeUpError as error:
            raise self._timeout(timeout_s, error) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if limit.expired():
                raise self._timeout(timeout_s, error) from None
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return self._error(error)

    def _error(self, error: BaseException) -> RewardError:
        found = RewardError(describe_failure(self.name, error))
        found.__cause__ = error
        return found

    def _timeout(self, timeout_s: float, error: BaseException) -> RewardTimeoutError:
        return RewardTimeoutError(with_frames(f"the reward {self.name} took longer than {timeout_s:g} s", error))


def _copied(argument: Trajectory | list[Trajectory]) -> Any:
    return [own_copy(one) for one in argument] if isinstance(argument, list) else own_copy(argument)


def name_of(function: RewardFunction) -> str:
    """The name of a function, by which its values are reported. Raises InputError for a lambda."""
    name: str = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise InputError(f"the reward {name} has no name to report it by; define it with def")
    return name


def _check_callable(function: RewardFunction, name: str) -> None:
    """Raises InputError for a function that cannot take a trajectory, such as a built-in one of Python."""
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise InputError(f"the reward {name} is not a function of a trajectory; define it with def") from None


def parameters(function: RewardFunction) -> list[str]:
    """The settings of a reward: its keyword-only arguments."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _is_stateful(function: RewardFunction) -> bool:
    return inspect.isclass(function) and issubclass(function, StatefulReward)


def scores_groups(function: RewardFunction) -> bool:
    """Whether a function takes all attempts at a task, not one trajectory."""
    called: Any = vars(function)["__call__"] if _is_stateful(function) else function
    first = next((p for p in inspect.signature(called).parameters.values() if p.name != "self"), None)
    if first is None:
        return False
    # Annotations are text where their module has `from __future__ import annotations`.
    annotation = first.annotation if isinstance(first.annotation, str) else str(first.annotation)
    outer = annotation.partition("[")[0].rpartition(".")[2]
    return first.name == "attempts" or outer in ("list", "List", "Sequence") or first.annotation in (list, Sequence)
