"""Running coroutines from plain functions, also where an event loop is running already, as in a notebook.

asyncio refuses to start a second loop in a thread that has one. There the loop of a
`LoopRunner` gets a thread of its own, and the caller waits for it. The loop of a
`BackgroundLoop` runs all the time: what was started on it goes on while the caller does something else.

`limited` runs work with a time limit whose clock `not_counted` stops: work that waits for
something shared, such as a sandbox, must not be ended because others use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class LoopRunner:
    """Runs coroutines one after the other on one event loop, like `asyncio.Runner`."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, "bough-event-loop") if _loop_is_running() else None
        self._task: asyncio.Task[Any] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupt cancels it and waits until it has cleaned up."""
        if self._thread is None:
            return self._runner.run(work)
        future = self._thread.submit(self._runner.run, self._noted(work))
        try:
            return future.result()
        except KeyboardInterrupt:
            if self._task is not None:
                self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
            with contextlib.suppress(CancelledError, asyncio.CancelledError):
                future.result()
            raise

    def close(self) -> None:
        if self._thread is None:
            self._runner.close()
            return
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _noted(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        return await work


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
        if not self.loop.is_closed():
            self.run(_cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of one coroutine, like `asyncio.run`."""
    with LoopRunner() as runner:
        return runner.run(work)


def current_task() -> asyncio.Task[Any] | None:
    """The task that is running in this thread; None where no event loop is running."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Limit:
    """A deadline that moves while anything that it covers waits."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self._end: float | None = self.loop.time() + seconds
        self._timeout: asyncio.Timeout | None = None
        self._waits, self._left_s = 0, 0.0

    def timeout(self) -> asyncio.Timeout:
        self._timeout = asyncio.timeout_at(self._end)
        return self._timeout

    def stop(self) -> None:
        if not self._waits and self._end is not None:
            self._left_s = self._end - self.loop.time()
            self._set(None)
        self._waits += 1

    def resume(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._set(self.loop.time() + self._left_s)

    def _set(self, end: float | None) -> None:
        self._end = end
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it expires already, or is over and a task of it still runs
                self._timeout.reschedule(end)


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
        async with limit.timeout():
            return await _Begun(work, waits_for)
    finally:
        _limit.reset(token)


class _Begun(Generic[T]):
    """The rest of a coroutine that already waits for something. `await` itself refuses such a coroutine."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        work, waits_for = self._work, self._waits_for
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


@contextlib.contextmanager
def not_counted() -> Iterator[None]:
    """Time that does not count towards the limit of the `limited` work around it, if it is on this event loop."""
    limit = _limit.get()
    if limit is None or limit.loop is not asyncio.get_running_loop():
        yield
        return
    limit.stop()
    try:
        yield
    finally:
        limit.resume()
