"""Coroutines from plain functions, with and without a loop around them."""

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from bough import event_loop


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise ValueError("no")


def test_without_a_loop_it_runs_in_the_callers_thread():
    async def where() -> threading.Thread:
        return threading.current_thread()

    assert event_loop.run(where()) is threading.current_thread()


def test_inside_a_running_loop_it_returns_results_and_raises_errors():
    async def notebook() -> int:
        with pytest.raises(ValueError, match="no"):
            event_loop.run(fail())
        return event_loop.run(double(21))

    assert asyncio.run(notebook()) == 42


def test_an_interrupt_cancels_the_work_and_lets_it_clean_up():
    cleaned_up = []

    async def long() -> None:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned_up.append(True)

    # A notebook's own handler: asyncio.run would turn the first signal into a cancellation of its main task.
    loop, began = asyncio.new_event_loop(), time.monotonic()

    async def notebook() -> None:
        event_loop.run(long())

    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook())
    finally:
        loop.close()
    assert cleaned_up and time.monotonic() - began < 30


def test_time_that_is_not_counted_does_not_end_the_work():
    async def waits(counted: bool) -> str:
        if counted:
            await asyncio.sleep(60)
        else:
            with event_loop.not_counted():
                await asyncio.sleep(0.6)
        return "done"

    assert asyncio.run(event_loop.limited(waits(counted=False), 0.5)) == "done"
    with pytest.raises(TimeoutError):
        asyncio.run(event_loop.limited(waits(counted=True), 0.5))


def test_the_clock_goes_on_where_it_stopped_and_stands_while_any_of_several_waits():
    async def wait(seconds: float) -> None:
        with event_loop.not_counted():
            await asyncio.sleep(seconds)

    async def work() -> None:
        await asyncio.sleep(0.2)
        await asyncio.gather(wait(0.1), wait(0.5))
        await asyncio.sleep(60)

    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(event_loop.limited(work(), 1.0))
    assert 1.4 < time.monotonic() - begin < 30


def test_waiting_without_a_limit_or_after_it_is_over_is_allowed():
    async def late() -> None:
        with event_loop.not_counted():
            await asyncio.sleep(0.1)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(late())
        await asyncio.sleep(0)
        return task

    async def work() -> None:
        await late()
        await (await event_loop.limited(begin(), 5))

    asyncio.run(work())


def test_limited_work_is_sent_results_errors_and_cancellations_like_awaited_work():
    heard: list[object] = []

    async def work(future: asyncio.Future[int]) -> int:
        await asyncio.sleep(0)
        try:
            heard.append(await future)
        except BaseException as error:
            heard.append(type(error))
            if not isinstance(error, ValueError):
                raise
        await asyncio.sleep(0)
        return len(heard)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        for settle in (lambda one: one.set_result(5), lambda one: one.set_exception(ValueError())):
            future = loop.create_future()
            loop.call_later(0.001, settle, future)
            heard.append(await event_loop.limited(work(future), 60))
        task = asyncio.create_task(event_loop.limited(work(loop.create_future()), 60))
        loop.call_later(0.001, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert heard == [5, 1, ValueError, 3, asyncio.CancelledError]


def test_a_background_loop_continues_between_calls_and_cleans_up_when_it_is_closed():
    background, events = event_loop.BackgroundLoop(), list[str]()

    async def tick() -> None:
        try:
            while True:
                events.append("tick")
                await asyncio.sleep(0.001)
        finally:
            events.append("end")

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(tick())

    task = background.run(begin())
    assert background.run(double(4)) == 8
    with pytest.raises(ValueError, match="no"):
        background.run(fail())
    count = len(events)
    while len(events) < count + 5:
        time.sleep(0.001)
    background.close()
    background.close()
    assert events[-1] == "end" and task.cancelled()


@pytest.mark.parametrize("swallowed", [1, 2])
def test_what_swallows_a_cancellation_is_cancelled_again_and_then_left(monkeypatch: pytest.MonkeyPatch, swallowed: int):
    async def stubborn() -> None:
        for _ in range(swallowed):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        await asyncio.sleep(60)

    monkeypatch.setattr(event_loop, "CLEAN_UP_S", 0.01)
    background = event_loop.BackgroundLoop()
    work = asyncio.run_coroutine_threadsafe(stubborn(), background.loop)
    background.run(double(1))
    background.close()
    assert work.cancelled() is work.done() is (swallowed == 1)


def test_what_cleans_up_already_is_not_cancelled_a_second_time():
    async def run() -> list[str]:
        background, begun, ended = event_loop.BackgroundLoop(), asyncio.Event(), list[str]()
        here = asyncio.get_running_loop()

        async def work() -> None:
            try:
                here.call_soon_threadsafe(begun.set)
                await asyncio.Event().wait()
            finally:
                for _ in range(10_000):  # ending a process takes a while
                    await asyncio.sleep(0)
                ended.append("ended")

        first, _ = (asyncio.run_coroutine_threadsafe(work(), background.loop) for _ in range(2))
        await begun.wait()
        first.cancel()
        await asyncio.to_thread(background.close)
        return ended

    assert asyncio.run(run()) == ["ended"] * 2
