"""Threads with an event loop each, for environments whose code may block.

Code that blocks an event loop blocks everything on that loop, and Python cannot stop it.
So each environment gets a loop in a thread of its own. A thread that does not respond is
abandoned: it is told to end and not waited for. The number of abandoned threads is limited.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from bough.environments.base import EnvironmentFailedError
from bough.environments.tool_failures import AbandonedError
from bough.errors import BoughError

log = logging.getLogger(__name__)
T = TypeVar("T")
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
