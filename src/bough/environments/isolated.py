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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
    check_unicode,
)
from bough.environments.tools import AbandonedError
from bough.errors import BoughError, short_repr
from bough.types import Message, Task

log = logging.getLogger(__name__)
T = TypeVar("T")
Act = Callable[[], Any]
Read = Callable[[Any], Any]
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

        def read(given: Any) -> Observation:
            if isinstance(given, str):
                given = Observation.say(given)
            if isinstance(given, Observation) and not given.tools:
                given = replace(given, tools=tuple(self._made.tools))
            return check_observation("start", given, self._made)

        return cast(Observation, await self._call("start", lambda: self._made.start(), read))

    async def step(self, reply: Message | str) -> Observation:
        said, check = Reply.of(reply), partial(check_observation, "step", environment=self._made)
        try:
            return cast(Observation, await self._call("step", lambda: self._made.step(said), check))
        except TooSlowError:
            if (ended := self._made.timed_out()) is None:
                raise
            return check_observation("timed_out", ended, self._made)

    async def copy(self) -> Isolated:
        """A second environment in the same state."""
        made = await self._call("copy", lambda: self._made.copy())
        if type(made) is not type(self._made) or made is self._made:
            raise EnvironmentFailedError(f"copy returned {short_repr(made)}; it must return another environment")
        other = Isolated(self.environment_class, self.task, step_timeout_s=self.step_timeout_s)
        other._thread = None if self.environment_class.shares_loop else take_thread()
        other._environment = made
        return other

    async def expert(self) -> str | None:
        return cast("str | None", await self._ask("expert", (str, NoneType), "text or None"))

    async def choices(self) -> Sequence[str]:
        def read(given: Any) -> list[str]:
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise EnvironmentFailedError(f"choices returned {short_repr(given)}; it must return a list of texts")
            return list(given)

        return cast("list[str]", await self._call("choices", lambda: self._made.choices(), read))

    async def action_in(self, reply: Message | str) -> str | None:
        return cast("str | None", await self._ask("action_in", (str, NoneType), "text or None", Reply.of(reply)))

    async def accepts(self, reply: Message | str) -> bool:
        return cast("bool", await self._ask("accepts", (bool,), "True or False", Reply.of(reply)))

    async def say(self, action: str) -> str:
        return cast("str", await self._ask("say", (str,), "text", action))

    async def release(self) -> None:
        """Calls the environment's `close`. Raises EnvironmentFailedError if that fails."""
        await self._call("close", lambda: self._made.close(), timeout_s=min(CLOSE_TIMEOUT_S, self.step_timeout_s))

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
        try:  # ten times as fast as deepcopy, and a task's data may be a whole game
            data = marshal.loads(marshal.dumps(self.task.data))  # noqa: S302  what was just written here
        except ValueError:  # other types than JSON's, or too deep
            data = copy.deepcopy(self.task.data)
        self._environment = self.environment_class(self.task.model_copy(update={"data": data}))
        self._environment.step_timeout_s = self.step_timeout_s

    async def _ask(self, method: str, kinds: tuple[type, ...], allowed: str, *given: Any) -> Any:
        """What a method returns, which must be one of these kinds."""
        result = await self._call(method, lambda: getattr(self._made, method)(*given))
        if not isinstance(result, kinds):
            raise EnvironmentFailedError(f"{method} returned {short_repr(result)}; it must return {allowed}")
        if isinstance(result, str):
            check_unicode(method, result)
        return result

    def _call(self, what: str, act: Act, read: Read | None = None, timeout_s: float = 0) -> Coroutine[Any, Any, Any]:
        return _bounded(self._thread, what, act, timeout_s or self.step_timeout_s, read)


async def shut_down(environment_class: type[Environment]) -> None:
    """Releases what the environment's episodes share. A failure is only logged: the episodes are complete."""
    thread: LoopThread | None = None
    try:
        thread = None if environment_class.shares_loop else take_thread()
        await _bounded(thread, "shutdown", environment_class.shutdown, CLOSE_TIMEOUT_S)
    except Exception as error:
        log.warning("%s: %s", environment_class.name or environment_class.__name__, error)
    finally:
        if thread is not None:
            thread.leave()


async def _bounded(thread: LoopThread | None, what: str, act: Act, timeout_s: float, read: Read | None = None) -> Any:
    """The result of `act`, a plain function or `async def`, run in its thread if it has one; `read` checks it there.

    Any failure, or a time-out, is the environment's.
    """

    async def work() -> Any:
        running = event_loop.current_task()
        try:
            result = act()
            if isinstance(result, CoroutineType) or inspect.isawaitable(result):
                result = await result
            if isinstance(result, CoroutineType):
                result.close()
                raise EnvironmentFailedError(f"{what} returned a coroutine; an await is missing in it")
            return read(result) if read else result
        except BoughError:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                ours = thread is None and running is not None and running.cancelling()
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

_threads: set[LoopThread] = set()
_blocked: set[LoopThread] = set()


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
        self._waiting: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="bough-environment", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """What `work` returns or raises in this thread; TimeoutError where it takes longer."""
        caller = asyncio.get_running_loop()
        answer: asyncio.Future[T] = caller.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work()))
            tasks[0].add_done_callback(lambda task: caller.call_soon_threadsafe(_settle, answer, task))

        self._waiting.add(answer)
        try:
            self._send(begin)
            if (await asyncio.wait([answer], timeout=timeout_s))[0]:
                return answer.result()
            raise TimeoutError
        finally:
            if not answer.done() and self.alive:  # too slow, or the caller was cancelled
                self._send(lambda: [task.cancel() for task in tasks])
                await asyncio.wait([answer], timeout=GRACE_S)
                if not answer.done():
                    answer.cancel()
                    self._abandon()
                elif not answer.cancelled():
                    answer.exception()  # it need not be retrieved
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
            self._stop()

    def _stop(self) -> None:
        _threads.discard(self)
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _abandon(self) -> None:
        self.blocked = True
        _blocked.add(self)
        # Ends Python code at its next instruction; code that waits in the system ends when it returns.
        identity, end = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(AbandonedError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, end)
        self._stop()
        self._give_up("it shared a thread with an environment that blocked it")

    def _give_up(self, why: str) -> None:
        for answer in list(self._waiting):
            with suppress(RuntimeError):  # the caller's loop has ended
                answer.get_loop().call_soon_threadsafe(_settle, answer, EnvironmentFailedError(why))

    def _run(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            try:
                self._loop.run_forever()
            finally:
                self._give_up("its event loop was stopped")
                if left := asyncio.all_tasks(self._loop):  # one that refuses to end does so with the loop
                    for task in left:
                        task.cancel()
                    self._loop.run_until_complete(asyncio.wait(left, timeout=GRACE_S))
        except BaseException as error:
            log.debug("an environment's thread ended with %s", type(error).__name__)
        finally:
            _threads.discard(self)
            self._give_up("its event loop was stopped")
            if not self._loop.is_running():
                self._loop.close()


def take_thread() -> LoopThread:
    """A thread for one more environment: a new one, or the one with the fewest users where there are many."""
    _blocked.difference_update([thread for thread in _blocked if not thread.alive])
    if len(_blocked) >= MAX_BLOCKED:
        raise BlockedError(
            f"{len(_blocked)} calls of environments block their threads and cannot be stopped; "
            "use await, or time-outs of your own, in what blocks"
        )
    if len(_threads) < MAX_THREADS:
        try:
            thread = LoopThread()
        except (OSError, RuntimeError) as error:
            raise EnvironmentFailedError(f"no thread can be started for the environment: {error}") from error
        _threads.add(thread)
    else:
        thread = min(_threads, key=lambda one: one.users)
    thread.users += 1
    return thread


def _settle(answer: asyncio.Future[T], result: asyncio.Task[T] | EnvironmentFailedError) -> None:
    """Passes on what a task returned or raised, once; runs in the caller's thread."""
    if answer.done():
        return
    if isinstance(result, EnvironmentFailedError):
        answer.set_exception(result)
    elif result.cancelled():
        answer.set_exception(EnvironmentFailedError("it was cancelled"))
    elif (error := result.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result.result())


class _DaemonExecutor(ThreadPoolExecutor):
    """For `asyncio.to_thread` in these loops: at exit, Python waits for the threads of a pool, but not for these."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()

        def run() -> None:
            try:
                answer.set_result(call(*args, **more))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name="bough-environment-call", daemon=True).start()
        return answer
