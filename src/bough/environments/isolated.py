"""An environment as episodes use it: with a time limit on every call, and without affecting other episodes.

Whatever its code does (raise, hang, block, return something invalid) is an `EnvironmentFailedError` of
this one episode. Its methods may be plain functions or `async def`; they run in a thread of
their own, unless the class `shares_loop`.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import logging
import marshal
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import CoroutineType, NoneType
from typing import Any, TypeVar, cast

from bough import event_loop
from bough.chat.tool_calls import Reply
from bough.environments.base import (
    Environment,
    EnvironmentFailedError,
    Observation,
    TooSlowError,
    blame,
    check_observation,
    check_reward,
    check_unicode,
)
from bough.environments.tools import AbandonedError
from bough.errors import BoughError
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
        await self._call(f"{self.environment_class.__name__}(task)", self._make, _ignore)

    async def start(self) -> Observation:
        if self._environment is None:
            await self.make()

        def read(given: Any) -> Observation:
            if isinstance(given, str):
                given = Observation.say(given)
            if isinstance(given, Observation) and not given.tools:
                given = replace(given, tools=tuple(self._made.tools))
            return self._observation(given, "start")

        return await self._call("start", lambda: self._made.start(), read)

    async def step(self, reply: Message | str) -> Observation:
        said = Reply.of(reply)
        try:
            return await self._call("step", lambda: self._made.step(said), self._observation)
        except TooSlowError:
            if (ended := self._made.timed_out()) is None:
                raise
            return check_observation("timed_out", ended)

    async def expert(self) -> str | None:
        return cast("str | None", await self._ask("expert", (str, NoneType), "text or None"))

    async def choices(self) -> Sequence[str]:
        def read(given: Any) -> list[str]:
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise EnvironmentFailedError(f"choices returned {_a(given)}; it must return a list of texts")
            return list(given)

        return await self._call("choices", lambda: self._made.choices(), read)

    async def action_in(self, reply: Message | str) -> str | None:
        return cast("str | None", await self._ask("action_in", (str, NoneType), "text or None", Reply.of(reply)))

    async def accepts(self, reply: Message | str) -> bool:
        return cast("bool", await self._ask("accepts", (bool,), "True or False", Reply.of(reply)))

    async def say(self, action: str) -> str:
        return cast("str", await self._ask("say", (str,), "text", action))

    async def release(self) -> None:
        """Calls the environment's `close`. Raises EnvironmentFailedError if that fails."""
        await self._call("close", lambda: self._made.close(), _ignore, min(CLOSE_TIMEOUT_S, self.step_timeout_s))

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

    def _make(self) -> None:
        task = self.task.model_copy(update={"data": _copy(self.task.data)})
        self._environment = self.environment_class(task)
        self._environment.step_timeout_s = self.step_timeout_s

    def _observation(self, given: Any, what: str = "step") -> Observation:
        observation = check_observation(what, given)
        check_reward(self._made, observation)
        return observation

    async def _ask(self, method: str, kinds: tuple[type, ...], allowed: str, *given: Any) -> Any:
        """What a method returns, which must be one of these kinds."""

        def read(result: Any) -> Any:
            if not isinstance(result, kinds):
                raise EnvironmentFailedError(f"{method} returned {_a(result)}; it must return {allowed}")
            if isinstance(result, str):
                check_unicode(method, result)
            return result

        return await self._call(method, lambda: getattr(self._made, method)(*given), read)

    def _call(
        self, what: str, act: Callable[[], Any], read: Callable[[Any], T], timeout_s: float | None = None
    ) -> Coroutine[Any, Any, T]:
        return _bounded(self._thread, what, act, read, timeout_s or self.step_timeout_s)


def _ignore(_: Any) -> None:
    """For methods whose result is not used."""


async def shut_down(environment_class: type[Environment]) -> None:
    """Releases what the environment's episodes share. A failure is only logged: the episodes are complete."""
    thread: LoopThread | None = None
    try:
        thread = None if environment_class.shares_loop else take_thread()
        await _bounded(thread, "shutdown", environment_class.shutdown, _ignore, CLOSE_TIMEOUT_S)
    except Exception as error:
        log.warning("%s: %s", environment_class.name or environment_class.__name__, error)
    finally:
        if thread is not None:
            thread.leave()


async def _bounded(
    thread: LoopThread | None, what: str, act: Callable[[], Any], read: Callable[[Any], T], timeout_s: float
) -> T:
    """What `read` makes of the result of `act`, a plain function or `async def`, run in its thread if it has one.

    Any failure, or a time-out, is the environment's.
    """

    async def work() -> T:
        running = event_loop.current_task()
        try:
            result = act()
            if isinstance(result, CoroutineType) or inspect.isawaitable(result):
                result = await result
            if isinstance(result, CoroutineType):
                result.close()
                raise EnvironmentFailedError(f"{what} returned a coroutine; an await is missing in it")
            return read(result)
        except BoughError:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                task = asyncio.current_task()
                ours = thread is None and task is not None and task.cancelling()
            elif isinstance(error, GeneratorExit):  # an abandoned call, closed by the garbage collector
                ours = event_loop.current_task() is not running
            else:  # Ctrl-C arrives in the main thread only
                ours = thread is None and isinstance(error, KeyboardInterrupt)
            if ours:
                raise
            raise blame(what, error) from error

    try:
        if thread is not None:
            return await thread.run(work, timeout_s)
        return await event_loop.limited(work(), timeout_s)
    except TimeoutError as error:  # ours: one of the environment's own is a EnvironmentFailedError by now
        raise TooSlowError(f"{what} took longer than {timeout_s:g} s") from error


def _copy(value: Any) -> Any:
    """A copy of a JSON value. marshal is ten times as fast as deepcopy, and a task's data may be a whole game."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302  what was just written here
    except ValueError:  # other types than JSON's, or too deep
        return copy.deepcopy(value)


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


# Threads with an event loop each, for environments whose code may block.
# Code that blocks an event loop blocks everything on that loop, and Python cannot stop it. So each environment gets a
# loop in a thread of its own. A thread that does not respond is abandoned: it is told to end and not waited for. The
# number of abandoned threads is limited.

# A loop takes three file descriptors. Beyond this number environments share threads.
MAX_THREADS = 64
# Abandoned threads that are still blocked: with more than this, the process gives up.
MAX_BLOCKED = 32
# Time that cancelled code has to end.
GRACE_S = 1.0

_threads: list[LoopThread] = []
_blocked: list[LoopThread] = []


class BlockedError(BoughError):
    """Too many threads are blocked; continuing would only add more."""


class LoopThread:
    """A daemon thread that runs an event loop for the environments that use it."""

    def __init__(self) -> None:
        self.users = 0
        self.blocked = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_DaemonExecutor())
        # Unfinished tasks end with their thread; that is not worth a warning.
        self._loop.set_exception_handler(lambda _, context: log.debug("%s", context.get("message")))
        self._waiting: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="bough-environment", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """What `work` returns or raises in this thread; TimeoutError where it takes longer."""
        answer: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def settled() -> None:
            try:
                value = await work()
            except BaseException as error:
                _settle(answer, error=error)
            else:
                _settle(answer, value)

        def begin() -> None:
            task = self._loop.create_task(settled())
            task.add_done_callback(lambda _: _settle(answer, error=EnvironmentFailedError("it was cancelled")))
            tasks.append(task)

        self._waiting.add(answer)
        waiting = asyncio.wrap_future(answer)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            self._send(begin)
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(waiting)
        except (TimeoutError, asyncio.CancelledError):
            if not waiting.done():
                self._send(lambda: [task.cancel() for task in tasks])
                await asyncio.wait([waiting], timeout=GRACE_S)
            if not waiting.done():
                waiting.cancel()
                self._abandon()
            raise
        finally:
            self._waiting.discard(answer)

    def _send(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            raise EnvironmentFailedError("its event loop was stopped") from None
        if not self.alive:
            raise EnvironmentFailedError("its event loop was stopped")

    def leave(self) -> None:
        """Removes one user; after the last one, the thread ends."""
        self.users -= 1
        if self.users == 0 and not self.blocked:
            _forget(self)
            self._stop()

    def _stop(self) -> None:
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _abandon(self) -> None:
        self.blocked = True
        _forget(self)
        _blocked.append(self)
        # Ends Python code at its next instruction; code that waits in the system ends when it returns.
        identity, end = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(AbandonedError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, end)
        self._stop()
        self._give_up("it shared a thread with an environment that blocked it")

    def _give_up(self, why: str) -> None:
        for answer in list(self._waiting):
            _settle(answer, error=EnvironmentFailedError(why))

    def _run(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()
            self._give_up("its event loop was stopped")
            self._end_tasks()
        except BaseException as error:
            log.debug("an environment's thread ended with %s", type(error).__name__)
        finally:
            _forget(self)
            self._give_up("its event loop was stopped")
            if not self._loop.is_running():
                self._loop.close()

    def _end_tasks(self) -> None:
        """Cancels tasks that an environment left running. One that refuses to end does so with the loop."""
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left, timeout=GRACE_S))


def take_thread() -> LoopThread:
    """A thread for one more environment: a new one, or the one with the fewest users where there are many."""
    _blocked[:] = [thread for thread in _blocked if thread.alive]
    if len(_blocked) >= MAX_BLOCKED:
        raise BlockedError(
            f"{len(_blocked)} calls of environments block their threads and cannot be stopped; "
            "use await, or time-outs of your own, in what blocks"
        )
    if len(_threads) < MAX_THREADS:
        try:
            _threads.append(LoopThread())
        except (OSError, RuntimeError) as error:
            raise EnvironmentFailedError(f"no thread can be started for the environment: {error}") from error
        thread = _threads[-1]
    else:
        thread = min(_threads, key=lambda one: one.users)
    thread.users += 1
    return thread


def _forget(thread: LoopThread) -> None:
    if thread in _threads:
        _threads.remove(thread)


def _settle(answer: Future[T], value: Any = None, *, error: BaseException | None = None) -> None:
    """Sets the result once; later ones are ignored."""
    with suppress(InvalidStateError):  # it is settled, or was cancelled
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


class _DaemonExecutor(ThreadPoolExecutor):
    """For `asyncio.to_thread` in these loops: at exit, Python waits for the threads of a pool, but not for these."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                _settle(answer, call(*args, **more))
            except BaseException as error:
                _settle(answer, error=error)

        threading.Thread(target=run, name="bough-environment-call", daemon=True).start()
        return answer
