"""An environment as episodes use it: with a time limit on every call, and without affecting other episodes.

Whatever its code does (raise, hang, block, return something invalid) is a `EnvironmentFailedError` of
this one episode. Its methods may be plain functions or `async def`; they run in a thread of
their own, unless the class `shares_loop`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import marshal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from types import CoroutineType
from typing import Any, TypeVar

from bough import event_loop
from bough.environments.base import (
    Environment,
    EnvironmentFailedError,
    Observation,
    TooSlowError,
    blame,
    check_reward,
)
from bough.environments.observations import check_observation, check_unicode
from bough.environments.threads import LoopThread, take_thread
from bough.errors import BoughError
from bough.speech.reply import Reply
from bough.types import Message, Task

log = logging.getLogger(__name__)
T = TypeVar("T")
# Time limit of `close` and `shutdown`.
CLOSE_TIMEOUT_S = 10.0


class Isolated:
    """One episode's environment. It is created by `start`, from a copy of the task: the task itself is not changed."""

    def __init__(self, environment_class: type[Environment], task: Task, *, step_timeout_s: float = 60.0) -> None:
        self.environment_class, self.task, self.step_timeout_s = environment_class, task, step_timeout_s
        self._environment: Environment | None = None
        self._thread: LoopThread | None = None

    async def make(self) -> None:
        """Creates the environment without starting it."""
        if not self.environment_class.shares_loop:
            self._thread = take_thread()
        await self._call(f"{self.environment_class.__name__}(task)", self._make)

    async def start(self) -> Observation:
        if self._environment is None:
            await self.make()
        return await self._observe("start", lambda environment: environment.start())

    async def step(self, reply: Message | str) -> Observation:
        given = Reply.of(reply)
        try:
            return await self._observe("step", lambda environment: environment.step(given))
        except TooSlowError:
            if (ended := self._made.timed_out()) is None:
                raise
            return check_observation("timed_out", ended)

    async def expert(self) -> str | None:
        async def expert() -> str | None:
            reply = await _result("expert", self._made.expert())
            if not isinstance(reply, str | None):
                raise EnvironmentFailedError(f"expert returned {_a(reply)}; it must return text or None")
            check_unicode("expert", reply or "")
            return reply

        return await self._call("expert", expert)

    async def choices(self) -> Sequence[str]:
        async def choices() -> list[str]:
            actions = await _result("choices", self._made.choices())
            if isinstance(actions, str) or not isinstance(actions, Iterable):
                raise EnvironmentFailedError(f"choices returned {_a(actions)}; it must return a list of texts")
            return list(actions)

        return await self._call("choices", choices)

    async def action_in(self, reply: Message | str) -> str | None:
        given = Reply.of(reply)

        async def action_in() -> str | None:
            action = await _result("action_in", self._made.action_in(given))
            if not isinstance(action, str | None):
                raise EnvironmentFailedError(f"action_in returned {_a(action)}; it must return text or None")
            return action

        return await self._call("action_in", action_in)

    async def accepts(self, reply: Message | str) -> bool:
        given = Reply.of(reply)

        async def accepts() -> bool:
            accepted = await _result("accepts", self._made.accepts(given))
            if not isinstance(accepted, bool):
                raise EnvironmentFailedError(f"accepts returned {_a(accepted)}; it must return True or False")
            return accepted

        return await self._call("accepts", accepts)

    async def say(self, action: str) -> str:
        async def say() -> str:
            reply = await _result("say", self._made.say(action))
            if not isinstance(reply, str):
                raise EnvironmentFailedError(f"say returned {_a(reply)}; it must return text")
            return reply

        return await self._call("say", say)

    async def release(self) -> None:
        """Calls the environment's `close`. Raises EnvironmentFailedError if that fails."""
        timeout_s = min(CLOSE_TIMEOUT_S, self.step_timeout_s)
        await self._call("close", lambda: _result("close", self._made.close()), timeout_s)

    async def close(self, *, strict: bool = False) -> None:
        """Closes the environment and its thread. A failure is only logged, unless `strict`: the episode is complete."""
        try:
            if self._environment is not None and not (self._thread and self._thread.blocked):
                await self.release()
        except Exception as error:
            if strict:
                raise
            log.warning("%s: %s", self.task.id, error)
        finally:
            self._environment = None
            if self._thread is not None:
                self._thread.leave()
                self._thread = None

    @property
    def _made(self) -> Environment:
        if self._environment is None:
            raise EnvironmentFailedError("the environment is closed")
        return self._environment

    async def _make(self) -> None:
        task = self.task.model_copy(update={"data": _copy(self.task.data)})
        self._environment = self.environment_class(task)
        self._environment.step_timeout_s = self.step_timeout_s

    async def _observe(
        self, what: str, act: Callable[[Environment], Observation | str | Awaitable[Observation | str]]
    ) -> Observation:
        async def observe() -> Observation:
            given = await _result(what, act(self._made))
            if what == "start" and isinstance(given, str):
                given = Observation.say(given)
            if what == "start" and isinstance(given, Observation) and not given.tools:
                given = replace(given, tools=tuple(self._made.tools))
            observation = check_observation(what, given)
            check_reward(self._made, observation)
            return observation

        return await self._call(what, observe)

    def _call(
        self, what: str, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None
    ) -> Coroutine[Any, Any, T]:
        return _bounded(self._thread, what, work, timeout_s or self.step_timeout_s)


async def shut_down(environment_class: type[Environment]) -> None:
    """Releases what the environment's episodes share. A failure is only logged: the episodes are complete."""
    thread: LoopThread | None = None
    try:
        thread = None if environment_class.shares_loop else take_thread()
        await _bounded(thread, "shutdown", lambda: _result("shutdown", environment_class.shutdown()), CLOSE_TIMEOUT_S)
    except Exception as error:
        log.warning("%s: %s", environment_class.name or environment_class.__name__, error)
    finally:
        if thread is not None:
            thread.leave()


async def _bounded(
    thread: LoopThread | None, what: str, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float
) -> T:
    """The result of `work`, run in its thread if it has one. Any failure, or a time-out, is the environment's."""

    async def attributed() -> T:
        running = event_loop.current_task()
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
            if isinstance(error, GeneratorExit) and event_loop.current_task() is not running:
                raise  # an abandoned call, closed by the garbage collector
            raise blame(what, error) from error

    try:
        if thread is not None:
            return await thread.run(attributed, timeout_s)
        return await event_loop.limited(attributed(), timeout_s)
    except TimeoutError as error:  # ours: one of the environment's own is a EnvironmentFailedError by now
        raise TooSlowError(f"{what} took longer than {timeout_s:g} s") from error


async def _result(what: str, given: Any) -> Any:
    """The result of a method, which may be a plain function or `async def`."""
    if isinstance(given, CoroutineType):
        result = await given
    else:
        result = await given if inspect.isawaitable(given) else given
    if isinstance(result, CoroutineType):
        result.close()
        raise EnvironmentFailedError(f"{what} returned a coroutine; an await is missing in it")
    return result


def _copy(value: Any) -> Any:
    """A copy of a JSON value. marshal is ten times as fast as deepcopy, and a task's data may be a whole game."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302  what was just written here
    except ValueError:  # other types than JSON's, or too deep
        return copy.deepcopy(value)


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
