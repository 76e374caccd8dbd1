"""A rubric: which rewards count, and how much each.

    rubric = Rubric({"outcome": 1.0, "overlong": {"weight": 1.0, "max_length": 4096}, my_reward: 0.5})
    scored = rubric.score(trajectory)      # scored.rewards: each by its name, and their weighted sum, "total"
    scored = rubric.score_all(attempts)    # the same for many; rewards of groups compare attempts at one task

A reward is a function, built in or the user's own:

    def brevity(trajectory: Trajectory) -> float: ...                  # one trajectory
    async def judged(trajectory: Trajectory) -> float: ...             # sync or async
    def rank(attempts: list[Trajectory]) -> list[float]: ...           # all attempts at one task

A function scores whole groups if its first parameter is annotated as a list or sequence,
or is called `attempts`. It returns one value per attempt, in their order.

A function gets copies, so that it cannot change the records. What it raises is a failure
of this one value; a function that hangs ends the run, because no value would ever come.

A reward that cannot be computed is None, never 0, and makes the total None: such a trajectory is
left out where attempts are compared. Where the agent's words are the reason (it talked a judge
out of an answer), it is the worst value of the reward's range instead, and counted. A reward
outside its declared range stops the run. A reward of weight 0 is reported but does not count.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Self

from bough import event_loop
from bough.config.groups import Weight
from bough.environments import given, rewards
from bough.environments.rewards import AgentFaultError, Bounds, Judge, bounds_of
from bough.errors import (
    BoughError,
    InputError,
    RewardRangeError,
    describe_failure,
    did_you_mean,
    short_repr,
    with_frames,
)
from bough.ledger import is_finite, plural
from bough.types import Trajectory

log = logging.getLogger(__name__)
RewardFunction = Callable[..., Any]
TOTAL = "total"
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
        try:
            known = parameters(function)
        except (TypeError, ValueError):  # a built-in function of Python, say
            raise InputError(f"the reward {name} is not a function of a trajectory; define it with def") from None
        settings: dict[str, Any] = dict(weight) if isinstance(weight, Mapping) else {"weight": weight}
        factor = float(settings.pop("weight", 1.0))
        if unknown := [key for key in settings if key not in known]:
            raise InputError(
                f"the settings of reward {name} have {plural(len(unknown), 'problem')}:",
                [f"{key} is not a setting{did_you_mean(key, ['weight', *known])}" for key in unknown],
            )
        made = Judge(**settings) if function is Judge else partial(function, **settings)
        return cls(name, factor, made, bounds_of(function), scores_groups(function), function in REWARDS.values())

    def values(
        self, arguments: Sequence[Trajectory] | Sequence[list[Trajectory]], timeout_s: float = TIMEOUT_S
    ) -> list[Any]:
        """What the function returns for each argument; a RewardError where it raised an exception.

        Raises RewardTimeoutError where one takes longer than `timeout_s`. A judge has a time limit of its own,
        after which its value is only absent, and gets at least that long.
        """
        if isinstance(self.function, Judge):
            timeout_s = max(timeout_s, self.function.timeout_s + GRACE_S)
        with Watchdog(timeout_s) as watchdog:
            found = [self._call(argument, watchdog) for argument in arguments]
        waiting = [place for place, value in enumerate(found) if inspect.isawaitable(value)]
        if waiting:
            results = event_loop.run(self._gather([found[place] for place in waiting], timeout_s))
            for place, result in zip(waiting, results, strict=True):
                found[place] = result
        return found

    def _call(self, argument: Trajectory | list[Trajectory], watchdog: Watchdog) -> Any:
        if not self.built_in:  # whatever its author's function changes, the records stay as they were
            argument = pickle.loads(pickle.dumps(argument, pickle.HIGHEST_PROTOCOL))  # noqa: S301  written here
        try:
            watchdog.restart()
            try:
                return self.function(argument)
            finally:
                watchdog.rest()
        except BaseException as error:  # one bad reward must not cost the others their work, nor exit the process
            return self._failure(error, watchdog.timeout_s, timed_out=isinstance(error, TimeUpError))

    async def _gather(self, values: list[Awaitable[Any]], timeout_s: float) -> list[Any]:
        """The results of async rewards. The watchdog notices one that blocks the event loop."""
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(value: Awaitable[Any]) -> Any:
            async with gate:
                try:
                    async with asyncio.timeout(timeout_s) as limit:
                        return await value
                except BaseException as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise
                    return self._failure(error, timeout_s, timed_out=limit.expired() or isinstance(error, TimeUpError))

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

    def _failure(self, error: BaseException, timeout_s: float, *, timed_out: bool) -> RewardError:
        """What a function raised as its value; a time-out and Ctrl-C are raised."""
        if timed_out:
            raise RewardTimeoutError(
                with_frames(f"the reward {self.name} took longer than {timeout_s:g} s", error)
            ) from None
        if isinstance(error, KeyboardInterrupt):
            raise error
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
        found = {part.name: self._values(part, trajectories) for part in self.parts}
        scored = []
        for place, trajectory in enumerate(trajectories):
            values = {name: one[place] for name, one in found.items()}
            counted = [(part.weight, values[part.name]) for part in self.parts if part.weight]
            known = [weight * value for weight, value in counted if value is not None]
            total = sum(known) if len(known) == len(counted) else None
            if not is_finite(total):  # finite rewards may have a sum or a product that is not
                total = None
            rewards = {**trajectory.rewards, **values, TOTAL: total}
            scored.append(trajectory.model_copy(update={"rewards": rewards}))
        return scored

    def to_json(self) -> dict[str, Any]:
        """What could not be computed, for a report."""
        return {name: {"failed": count, "why": self.why[name]} for name, count in self.failed.most_common()}

    def lowest_to_json(self) -> dict[str, Any]:
        """What got the worst value, for a report."""
        return {name: {"attempts": count, "why": self._lowest_why[name]} for name, count in self.lowest.most_common()}

    def costs(self) -> dict[str, dict[str, int]]:
        """What rewards that ask a model have cost: requests, tokens, answers found on disk, failures, worst values."""
        judges = {part.name: part.function for part in self.parts if isinstance(part.function, Judge)}
        lowest = {name: {"lowest": self.lowest[name]} if self.lowest[name] else {} for name in judges}
        return {name: {**judge.used, **lowest[name]} for name, judge in judges.items() if judge.used}

    def _values(self, part: WeightedReward, trajectories: Sequence[Trajectory]) -> list[float | None]:
        if not part.of_group:
            found = part.values(trajectories, self.timeout_s)
            return [self._checked(part, *pair) for pair in zip(trajectories, found, strict=True)]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, trajectory in enumerate(trajectories):
            task = trajectory.task
            groups.setdefault((task.environment, task.id, task.seed), []).append(place)
        results = part.values([[trajectories[place] for place in group] for group in groups.values()], self.timeout_s)
        values: list[float | None] = [None] * len(trajectories)
        for group, result in zip(groups.values(), results, strict=True):
            count = len(group)
            if isinstance(result, Exception):
                result = [result] * count
            elif not isinstance(result, list | tuple) or len(result) != count:
                returned = f"it returned {short_repr(result)} for {count} attempts"
                result = [TypeError(f"{returned}; a reward of a group returns one value per attempt")] * count
            for place, value in zip(group, result, strict=True):
                values[place] = self._checked(part, trajectories[place], value)
        return values

    def _checked(self, part: WeightedReward, trajectory: Trajectory, value: Any) -> float | None:
        """The value of a reward as a number; None and counted where there is none."""
        cause = value.__cause__ if isinstance(value, RewardError) else value
        if isinstance(cause, AgentFaultError) and part.bounds is not None:
            self.lowest[part.name] += 1
            self._lowest_why.setdefault(part.name, f"{trajectory.id}: {str(value).splitlines()[0]}")
            return part.bounds[part.weight < 0]  # a penalty is worst at the upper end
        if isinstance(value, bool) or is_finite(value):
            if part.bounds is not None and not part.bounds[0] <= value <= part.bounds[1]:
                raise RewardRangeError(f"the reward {part.name}", trajectory.task.id, float(value), part.bounds)
            return float(value)
        problem = f"it returned {short_repr(value)}; a reward is a finite number or None"
        if value is None:
            problem = "it is not known for this trajectory"
        elif isinstance(value, Exception):
            problem = str(value)
        if value is not None and part.name not in self._warned:
            self._warned.add(part.name)
            log.warning("the reward %s", problem)
        self.failed[part.name] += 1
        self.why.setdefault(part.name, f"{trajectory.id}: {problem.splitlines()[0]}")
        return None


REWARDS: dict[str, RewardFunction] = {
    "outcome": rewards.outcome,
    "progress": rewards.progress,
    "steps": rewards.steps,
    "format": rewards.format,
    "mistakes": rewards.mistakes,
    "tool_call": rewards.tool_call,
    "overlong": rewards.overlong,
    "judge": Judge,
}


def find(name: str) -> RewardFunction:
    """The reward of that name: built in, handed in, module:function or file.py:function."""
    if (known := given.REWARDS.get(name) or REWARDS.get(name)) is not None:
        return known
    if ":" not in name:
        raise InputError(
            f"there is no reward {name!r}{did_you_mean(name, REWARDS)} "
            "(your own: module:function or path/to/file.py:function)"
        )
    from bough.environments.registry import load_code  # methods load rewards, but nothing that plays

    found: RewardFunction = load_code(name, f"reward {name!r}", inspect.isfunction)
    if not callable(found):
        raise InputError(f"reward {name!r} is of type {type(found).__name__}; it must be a function")
    return found


def score(trajectory: Trajectory, name: str | None = None) -> float | None:
    """The one number by which trajectories are compared: the reward called `name`.

    Without a name: the total, else "reward", the only one, the outcome, success.

    A reward that is listed but was not computed is None; no other one replaces it.
    """
    rewards = trajectory.rewards
    if name is not None:
        return rewards.get(name)
    for known in (TOTAL, "reward", *([next(iter(rewards))] if len(rewards) == 1 else []), "outcome"):
        if known in rewards:
            return rewards[known]
    return None if trajectory.success is None or rewards else float(trajectory.success)


# Interrupts code that takes too long, in the thread in which it runs.
# Rewards stay in the caller's thread: libraries such as math-verify keep their own time with signals, which only the
# main thread can have. So a second thread watches, and a signal interrupts the main thread, also where it waits for
# the system. In other threads nothing is watched; Python cannot interrupt those.

# Ignored by default, so that one that arrives late does no harm.
SIGNAL = signal.SIGURG
# Again after this time, for code that catches everything.
AGAIN_S = 1.0


class TimeUpError(BaseException):
    """Raised in the code that took too long. Not an Exception, which authors catch."""


class Watchdog:
    """Raises TimeUpError in the main thread when more than `timeout_s` has passed since the last `restart`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end: float | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._old: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(SIGNAL, self._interrupt)
            self._thread = threading.Thread(target=self._watch, name="bough-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            signal.signal(SIGNAL, self._old)

    def restart(self) -> None:
        """Gives the code the whole time again."""
        self._end = time.monotonic() + self.timeout_s

    def rest(self) -> None:
        """Watches nothing until the next `restart`."""
        self._end = None

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        end = self._end
        if end is not None and time.monotonic() >= end:
            self._end = time.monotonic() + AGAIN_S
            raise TimeUpError

    def _watch(self) -> None:
        wait_s = self.timeout_s
        while not self._ended.wait(wait_s):
            end = self._end
            # Code that begins only now has its whole time before it.
            wait_s = self.timeout_s if end is None else end - time.monotonic()
            if wait_s <= 0:
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
                wait_s = AGAIN_S
