"""An environment's call ends in a result, in the environment's failure, or in silence where it was abandoned."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bough.environments import isolated
from bough.environments.base import Environment, EnvironmentFailedError
from bough.environments.isolated import Isolated
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
        asyncio.run(isolated._bounded(Abandoning(), "step", asyncio.Event().wait, None, 1))  # type: ignore[arg-type]
    gc.collect()
    assert not complaints


class Waiting(Counting):
    """All that an environment may also answer later."""

    async def choices(self) -> list[str]:
        return ["1", "2"]

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
        ("choices", [], 3, "choices returned a int; it must return a list of texts"),
        ("choices", [], "go", "choices returned a str; it must return a list of texts"),
        ("action_in", ["go"], 3, "action_in returned a int; it must return text or None"),
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
