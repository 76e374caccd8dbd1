"""An environment as episodes use it: with a time limit on every call, and no way to disturb other episodes.

Whatever its code does (raise, hang, block, answer nonsense) is a `WorldError` of this one
episode. Code runs in a thread of its own, unless its class `shares_loop`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bough.environments.base import Environment, Observation, WorldError, blame, check_reward
from bough.environments.observations import check_observation
from bough.environments.threads import LoopThread, take_thread
from bough.errors import BoughError
from bough.types import Task

log = logging.getLogger(__name__)
T = TypeVar("T")
# An episode that is over waits at most this long for its environment to let go.
CLOSE_TIMEOUT_S = 10.0


class Isolated:
    """One episode's environment. It is made by `start`, from a copy of the task: the task itself stays as it is."""

    def __init__(self, environment_class: type[Environment], task: Task, *, step_timeout_s: float = 60.0) -> None:
        self.environment_class, self.task, self.step_timeout_s = environment_class, task, step_timeout_s
        self._environment: Environment | None = None
        self._thread: LoopThread | None = None

    async def start(self) -> Observation:
        if not self.environment_class.shares_loop:
            self._thread = take_thread()
        await self._call(f"{self.environment_class.__name__}(task)", self._make)
        return await self._observe("start", lambda environment: environment.start())

    async def step(self, reply: str) -> Observation:
        return await self._observe("step", lambda environment: environment.step(reply))

    async def expert(self) -> str | None:
        async def expert() -> str | None:
            reply = await _awaited("expert", self._made.expert())
            if not isinstance(reply, str | None):
                raise WorldError(f"expert returned {_a(reply)}; it must return text or None")
            return reply

        return await self._call("expert", expert)

    async def choices(self) -> Sequence[str]:
        async def choices() -> list[str]:
            return list(self._made.choices())

        return await self._call("choices", choices)

    async def say(self, action: str) -> str:
        async def say() -> str:
            return self._made.say(action)

        return await self._call("say", say)

    async def close(self) -> None:
        """Lets go of the environment. What was played stays played, however that goes."""
        if self._environment is not None and not (self._thread and self._thread.blocked):
            try:
                timeout_s = min(CLOSE_TIMEOUT_S, self.step_timeout_s)
                await self._call("close", lambda: _awaited("close", self._made.close()), timeout_s)
            except Exception as error:
                log.warning("%s: %s", self.task.id, error)
        self._environment = None
        if self._thread is not None:
            self._thread.leave()
            self._thread = None

    @property
    def _made(self) -> Environment:
        if self._environment is None:
            raise WorldError("the environment is closed")
        return self._environment

    async def _make(self) -> None:
        self._environment = self.environment_class(self.task.model_copy(deep=True))
        self._environment.step_timeout_s = self.step_timeout_s

    async def _observe(self, what: str, act: Callable[[Environment], Awaitable[Observation]]) -> Observation:
        async def observe() -> Observation:
            observation = check_observation(what, await _awaited(what, act(self._made)))
            check_reward(self._made, observation)
            return observation

        return await self._call(what, observe)

    async def _call(self, what: str, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        return await _bounded(self._thread, what, work, timeout_s or self.step_timeout_s)


async def shut_down(environment_class: type[Environment]) -> None:
    """Lets go of what the environment's episodes share. A failure is logged: the episodes are on file."""
    thread: LoopThread | None = None
    try:
        thread = None if environment_class.shares_loop else take_thread()
        await _bounded(thread, "shutdown", lambda: _awaited("shutdown", environment_class.shutdown()), CLOSE_TIMEOUT_S)
    except Exception as error:
        log.warning("%s: %s", environment_class.name or environment_class.__name__, error)
    finally:
        if thread is not None:
            thread.leave()


async def _bounded(
    thread: LoopThread | None, what: str, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float
) -> T:
    """What `work` answers within its time, in its thread if it has one. Whatever else happens is the environment's."""

    async def told() -> T:
        try:
            return await work()
        except BoughError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if thread is None and task is not None and task.cancelling():
                raise
            raise blame(what, error) from error
        except BaseException as error:
            if thread is None and isinstance(error, KeyboardInterrupt):
                raise  # Ctrl-C arrives in the main thread only
            raise blame(what, error) from error

    try:
        if thread is not None:
            return await thread.run(told, timeout_s)
        async with asyncio.timeout(timeout_s):
            return await told()
    except TimeoutError as error:  # ours: one of the environment's own is a WorldError by now
        raise WorldError(f"{what} took longer than {timeout_s:g} s") from error


async def _awaited(what: str, given: Any) -> Any:
    """The result of a method that must be `async def`."""
    if not inspect.isawaitable(given):
        raise WorldError(f"{what} returned {_a(given)} without being awaited; it must be declared with async def")
    result = await given
    if inspect.iscoroutine(result):
        result.close()
        raise WorldError(f"{what} returned a coroutine; an await is missing in it")
    return result


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
