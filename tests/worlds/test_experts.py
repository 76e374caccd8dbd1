"""Experts from random states: `benchmarks/experts.py` does the same with ten thousand.

Those of web pages and functions are tested with their environments.
"""

import asyncio
from itertools import islice
from random import Random
from typing import Any

import pytest
from benchmarks.experts import outcome

from bough.chat import tool_calls
from bough.environments.base import Environment
from bough.environments.isolated import shut_down
from bough.types import Task, ToolCall
from bough.worlds.household.environment import Household
from bough.worlds.interpreter.environment import Interpreter


def outcomes(environment_class: type[Environment], count: int, **options: Any) -> list[str]:
    async def all_of_them() -> list[str]:
        tasks = islice(environment_class.tasks(environment_class.Options(**options), seed=3), count)  # type: ignore[arg-type]
        try:
            return [(await outcome(environment_class, task, Random(at)))[0] for at, task in enumerate(tasks)]
        finally:
            await shut_down(environment_class)

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("options", [{}, {"claim": True}], ids=str)
def test_the_household_is_won_from_any_state_that_can_be_won(options: dict[str, Any]):
    found = outcomes(Household, 100, **options)
    assert not {word for word in found if word != "won" and not word.startswith("lost: the agent holds a thing")}
    assert found.count("won") > 90


def test_the_interpreter_is_won_from_any_state():
    assert outcomes(Interpreter, 10) == ["won"] * 10


def code(text: str) -> str:
    return tool_calls.call_text(ToolCall(name="code_interpreter", arguments={"code": text}))


def test_the_interpreters_expert_answers_only_what_was_computed():
    """After calls of the agent's own that failed or computed something else, it runs the code first."""

    async def play(task: Task, rng: Random) -> tuple[list[str], bool | None]:
        environment, said = Interpreter(task), list[str]()
        await environment.start()
        try:
            for reply in rng.sample([code("1/0"), code("print(7)"), "<tool_call>{", code("x = 1")], rng.randrange(4)):
                await environment.step(reply)
            while True:
                said.append(await environment.expert() or "")
                seen = await environment.step(said[-1])
                if seen.done:
                    return said, seen.success
        finally:
            await environment.close()

    async def all_of_them() -> list[tuple[list[str], bool | None]]:
        tasks = islice(Interpreter.tasks(Interpreter.Options()), 8)
        try:
            return [await play(task, Random(at)) for at, task in enumerate(tasks)]
        finally:
            await Interpreter.shutdown()

    for said, success in asyncio.run(all_of_them()):
        assert success and [tool_calls.OPEN in reply for reply in said] == [True, False]
