"""Running coroutines from plain functions, also where an event loop is running already, as in a notebook.

asyncio refuses to start a second loop in a thread that has one: there `run` uses a thread of its own. The loop of a
`BackgroundLoop` runs all the time: what was started on it continues while the caller does something else.

`limited` runs work with a time limit whose clock `not_counted` stops: work that waits for
something shared, such as a sandbox, must not be ended because others use it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType, coroutine
from typing import Any, Self, TypeVar

from bough.errors import BoughError
from bough.ledger import plural

log = logging.getLogger(__name__)

T = TypeVar("T")
CLEAN_UP_S = 30.0


class BackgroundLoop:
    """An event loop in a thread of its own, until it is closed."""

    def __init__(self, name: str = "bough-event-loop") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupt cancels it; `close` waits until it has cleaned up."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what is still running, waits until it has cleaned up, and ends the thread."""

        async def cancel_others() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for again in (False, True):  # what swallows a second cancellation is left
                for task in others:
                    if again or not task.cancelling():  # a second time would interrupt how it cleans up
                        task.cancel()
                await asyncio.wait([asyncio.gather(*others, return_exceptions=True)], timeout=CLEAN_UP_S)
            await self.loop.shutdown_asyncgens()
            await self.loop.shutdown_default_executor()

        if not self.loop.is_closed():
            self.run(cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of one coroutine, like `asyncio.run`, also where a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    background = BackgroundLoop()
    try:
        return background.run(work)
    finally:
        background.close()


def current_task() -> asyncio.Task[Any] | None:
    """The task that is running in this thread; None where no event loop is running."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _Limit:
    """A deadline that moves while anything that it covers waits."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.end = self.loop.time() + seconds
        self.timeout: asyncio.Timeout | None = None
        self.waits, self.waiting_since = 0, 0.0

    def move(self, end: float | None) -> None:
        if self.timeout is not None:
            with suppress(RuntimeError):  # it expires already, or is over and a task of it still runs
                self.timeout.reschedule(end)


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


async def limited(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of `work`; TimeoutError after `seconds`, not counting the time inside `not_counted`.

    A timer ends only work that waits, so it is started when `work` first does: most steps of
    most environments never wait.
    """
    limit = _Limit(seconds)
    token = _limit.set(limit)
    try:
        try:
            waits_for = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        async with asyncio.timeout_at(None if limit.waits else limit.end) as limit.timeout:
            return await _rest(work, waits_for)
    finally:
        _limit.reset(token)


@coroutine
def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that already waits for something. `await` itself refuses such a coroutine."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result


@contextmanager
def not_counted() -> Iterator[None]:
    """Time that does not count towards the limit of the `limited` work around it, if it is on this event loop."""
    limit = _limit.get()
    if limit is None or limit.loop is not asyncio.get_running_loop():
        yield
        return
    if not limit.waits:
        limit.waiting_since = limit.loop.time()
        limit.move(None)
    limit.waits += 1
    try:
        yield
    finally:
        limit.waits -= 1
        if not limit.waits:
            limit.end += limit.loop.time() - limit.waiting_since
            limit.move(limit.end)


# Requests that are tried again: which failures may pass, how often, and with which waits.

# Statuses of a busy or restarting server.
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The n-th retry comes after about `backoff_s` * 2**n seconds, later if the server says so.

    A server that asks for more than `longest_wait_s` is not waited for.
    """

    retries: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 120.0


class PassingError(Exception):
    """What may be gone at the next try. `retry_after_s` is the wait that the server asks for."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


async def retried(
    once: Callable[[], Awaitable[T]],
    limits: RetryLimits,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_retry: Callable[[], None] | None = None,
) -> T:
    """What `once` returns, tried again while it raises PassingError. The last one is raised, with a count of tries."""
    for attempt in range(limits.retries + 1):
        try:
            return await once()
        except PassingError as error:
            left = limits.retries - attempt
            if left == 0 or error.retry_after_s > limits.longest_wait_s:
                tried = "" if attempt == 0 else f" (tried {attempt + 1} times)"
                raise PassingError(f"{error}{tried}") from None
            # Between half and all of it, so that many clients do not come back at the same moment.
            wait_s = limits.backoff_s * float(2**attempt) * random.uniform(0.5, 1)  # noqa: S311
            wait_s = min(max(wait_s, error.retry_after_s), limits.longest_wait_s)
            log.info("%s; trying again in %.1f s, %s left", error, wait_s, plural(left, "try"))
        if on_retry is not None:
            on_retry()
        await sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def retry_after_s(header: str | None) -> float:
    """The seconds that a Retry-After header asks for; 0 where it names a date."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


# Ctrl-C during training: the run stops where it can resume, with a checkpoint of everything learnt so far.
# The first SIGINT, SIGTERM or SIGHUP is a request: the current step is finished, a wait for episodes ends, a
# checkpoint is saved. The second signal of the same kind raises KeyboardInterrupt wherever the process is. Signals of
# different kinds are one request: a launcher that got Ctrl-C itself often sends SIGTERM to processes that the
# terminal has interrupted already.
# Outside training the command line answers SIGTERM and SIGHUP as it answers Ctrl-C (`sigterm_interrupts`).
# A thread that no signal reaches, such as that of a learner on a cluster, gets the same request from `request_stop`.

# Handlers that only end the process. Any other that somebody else has installed stays.
REPLACED: dict[signal.Signals, list[Any]] = {
    signal.SIGINT: [signal.default_int_handler],
    signal.SIGTERM: [signal.SIG_DFL],
    signal.SIGHUP: [signal.SIG_DFL],
}
_active: list[Interrupts] = []


class StopRequestedError(BoughError):
    """A wait for the next batch has ended because the run is to stop."""


class StoppedError(KeyboardInterrupt):
    """An interrupted run has stopped, in all of its processes. The message says after which step."""


class Interrupts:
    """Requests to stop the run that is in training while its `with` lasts.

    With `quiet` a signal is answered without a word, as in the processes of a run besides the first.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.requested = False
        self._quiet = quiet
        self._signals: SimpleQueue[int | None] = SimpleQueue()
        self._heard: set[int] = set()
        self._handlers: dict[signal.Signals, Any] = {}
        self._callbacks: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._leaving = False

    def request(self) -> None:
        """Asks the run to stop, from any thread."""
        self.requested = True
        with self._lock:
            while self._callbacks:
                self._callbacks.pop()()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Within it `callback` is called when the run is to stop; if that is known already, now.

        It is called in another thread, at most once, and must end what this thread waits for.
        """
        with self._lock:
            if self.requested:
                callback()
            else:
                self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock, suppress(ValueError):  # it was called
                self._callbacks.remove(callback)

    def __enter__(self) -> Self:
        self._process, self._leaving = os.getpid(), False
        self._thread = threading.Thread(target=self._answer, name="interrupts", daemon=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            for number, replaced in REPLACED.items():
                if signal.getsignal(number) in replaced:
                    self._handlers[number] = signal.signal(number, self._hear)
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True  # from here on no signal raises: all handlers must be restored
        _active.remove(self)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        self._signals.put(None)
        self._thread.join()

    def _hear(self, number: int, _: FrameType | None) -> None:
        """The handler. It may run between any two instructions, so it takes no lock and prints nothing."""
        if os.getpid() != self._process:
            _end_fork(number)
            return
        if number in self._heard and not self._leaving:
            raise KeyboardInterrupt
        self._heard.add(number)
        self.requested = True
        self._signals.put(number)

    def _answer(self) -> None:
        """In a thread of its own: does for the first signal what a handler must not do."""
        if self._signals.get() is None:
            return
        if not self._quiet:
            log.warning("Stopping after the current step, with a checkpoint. Ctrl-C again stops immediately.")
        self.request()


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP do what Ctrl-C does at that moment. A handler that somebody else installed stays."""
    process, before = os.getpid(), dict[signal.Signals, Any]()

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            _end_fork(number)
            return
        ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(ctrl_c):
            ctrl_c(signal.SIGINT, frame)
        else:  # ignored, as in a shell's background jobs
            raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) in REPLACED[number]:
            before[number] = signal.signal(number, hear)
            REPLACED[number].append(hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            REPLACED[number].remove(hear)
            signal.signal(number, handler)


def _end_fork(number: int) -> None:
    """Ends a forked process by a signal, as without the handler that it has from its parent."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def request_stop() -> bool:
    """Asks the run that is in training in this process to stop; False if none is."""
    for interrupts in _active:
        interrupts.request()
    return bool(_active)
