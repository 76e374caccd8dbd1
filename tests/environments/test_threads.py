import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bough.environments import isolated
from bough.environments.base import EnvironmentFailedError
from bough.environments.isolated import BlockedError, LoopThread, take_thread

DONE = threading.Event()


@pytest.fixture(autouse=True)
def _end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(isolated, "GRACE_S", 0.1)
    yield
    DONE.set()
    DONE.clear()


async def block() -> None:
    DONE.wait(20)


async def name() -> str:
    return threading.current_thread().name


def run(thread: LoopThread, work: Any, timeout_s: float = 20.0) -> Any:
    return asyncio.run(thread.run(work, timeout_s))


def wait_for_the_end_of(thread: LoopThread) -> None:
    for _ in range(1000):
        if not thread.alive:
            return
        time.sleep(0.01)
    raise AssertionError("the thread is alive")


def test_work_runs_in_a_thread_that_ends_with_its_last_user():
    thread = take_thread()
    assert run(thread, name) == "bough-environment" and run(thread, name) == "bough-environment"
    thread.leave()
    wait_for_the_end_of(thread)
    assert thread not in isolated._threads


def test_a_thread_that_blocks_is_left_behind_and_takes_its_other_users_along(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolated, "MAX_THREADS", 1)
    monkeypatch.setattr(isolated, "_threads", [])
    monkeypatch.setattr(isolated, "_blocked", [])
    first, second = take_thread(), take_thread()
    assert first is second and first.users == 2

    async def both() -> list[Any]:
        waits = first.run(block, 0.2), second.run(name, 20)
        return await asyncio.gather(*waits, return_exceptions=True)

    timed_out, other = asyncio.run(both())
    assert isinstance(timed_out, TimeoutError)
    assert isinstance(other, EnvironmentFailedError) and "shared a thread" in str(other)
    assert take_thread() is not first, "the next user gets a thread that works"


def test_only_so_many_blocked_threads_are_left_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolated, "MAX_BLOCKED", 2)
    monkeypatch.setattr(isolated, "_blocked", [])
    blocked = []
    for _ in range(2):
        thread = take_thread()
        with pytest.raises(TimeoutError):
            run(thread, block, 0.05)
        blocked.append(thread)
    with pytest.raises(BlockedError, match="2 calls of environments block their threads and cannot be stopped"):
        take_thread()
    DONE.set()
    for thread in blocked:
        wait_for_the_end_of(thread)
    take_thread().leave()


def test_python_code_that_never_ends_is_stopped():
    async def spin() -> None:
        while True:
            pass

    thread = take_thread()
    with pytest.raises(TimeoutError):
        run(thread, spin, 0.05)
    wait_for_the_end_of(thread)
