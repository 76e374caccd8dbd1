"""An environment's call ends in a result, in the environment's failure, or in silence where it was abandoned."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from bough.environments import isolated
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.isolated import BlockedError, Isolated, LoopThread, take_thread
from bough.types import Task
from tests.environments.worlds import Counting


class Abandoning:
    """Starts a call on a loop that then ends, as a blocked thread's does when the process forgets it."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
        def start_and_leave() -> None:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)
            task = loop.create_task(work())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            del task

        await asyncio.to_thread(start_and_leave)
        raise TimeoutError


def test_an_abandoned_call_is_collected_in_silence(monkeypatch: pytest.MonkeyPatch):
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with pytest.raises(EnvironmentFailedError, match="step took longer than 1 s"):
        asyncio.run(isolated._bounded(Abandoning(), "step", asyncio.Event().wait, 1))  # type: ignore[arg-type]
    gc.collect()
    assert not complaints


class Waiting(Counting):
    """All that an environment may also answer later."""

    async def choices(self) -> Any:
        return {"1": 0, "2": 0}.keys()

    async def action_in(self, reply: str) -> str | None:
        return reply.strip() or None

    async def say(self, action: str, thought: str = "") -> str:
        return f"I say {action}."

    async def accepts(self, reply: str) -> bool:
        return reply == "2"


async def _asked(environment_class: type[Environment], method: str, *given: str) -> Any:
    environment = Isolated(environment_class, Task(id="a", data={"goal": 2}))
    await environment.start()
    try:
        return await getattr(environment, method)(*given)
    finally:
        await environment.close()


@pytest.mark.parametrize(
    ("method", "given", "answer"),
    [
        ("choices", [], ["1", "2"]),
        ("action_in", [" 2 "], "2"),
        ("action_in", [" "], None),
        ("say", ["2"], "I say 2."),
        ("accepts", ["2"], True),
    ],
)
def test_what_an_environment_answers_later_is_waited_for(method: str, given: list[str], answer: Any):
    assert asyncio.run(_asked(Waiting, method, *given)) == answer


@pytest.mark.parametrize(
    ("method", "given", "value", "said"),
    [
        ("choices", [], 3, "choices returned 3; it must return a list of texts"),
        ("choices", [], "go", "choices returned 'go'; it must return a list of texts"),
        ("action_in", ["go"], 3, "action_in returned 3; it must return text or None"),
        ("say", ["go"], None, "say returned None; it must return text"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_an_answer_of_another_type_is_the_environments_failure(
    method: str, given: list[str], value: Any, said: str, later: bool
):
    async def answer_later(*_: Any) -> Any:
        return value

    answer = answer_later if later else lambda *_: value
    with pytest.raises(EnvironmentFailedError, match=said):
        asyncio.run(_asked(type("Odd", (Counting,), {method: answer}), method, *given))


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
    monkeypatch.setattr(isolated, "_threads", set())
    monkeypatch.setattr(isolated, "_blocked", set())
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
    monkeypatch.setattr(isolated, "_blocked", set())
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
