"""The world's verdicts on answers made by hand equal those of the benchmark's unchanged checkers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bough.chat import tool_calls
from bough.environments.base import Observation
from bough.types import Task, ToolCall
from bough.worlds.functions import benchmark
from bough.worlds.functions.back_ends import plain
from bough.worlds.functions.environment import Functions
from tests.worlds.functions import official
from tests.worlds.functions.wrong_answers import MULTI_TURN, SINGLE_TURN, turns_of

LANGUAGES = {"simple_java": "java", "simple_javascript": "javascript"}


def case(task_id: str, **answer: Any) -> dict[str, Any]:
    entry = benchmark.entry(task_id)
    language = LANGUAGES.get(entry.set, "python")
    return {"set": entry.set, "row": entry.row, "gold": entry.answer, "language": language, **answer}


async def play(task_id: str, turns: list[list[list[ToolCall]]]) -> Observation:
    """The end of an episode that makes these calls: each reply's by itself, then a reply without a call."""
    world = Functions(Task(id=task_id))
    end = await world.start()
    for replies in turns:
        for calls in filter(None, replies):
            end = await world.step("\n".join(map(tool_calls.call_text, calls)))
        if not end.done:
            end = await world.step("That is all.")
    assert end.done
    return end


def played(runner: asyncio.Runner, answers: list[tuple[str, list[list[list[ToolCall]]]]]) -> list[Observation]:
    async def play_all() -> list[Observation]:
        return await asyncio.gather(*[play(*answer) for answer in answers])

    return runner.run(play_all())


def test_multi_turn_answers_score_as_in_the_benchmark(bfcl: Path, runner: asyncio.Runner):
    answers = [(task_id, turns_of(task_id, answer)) for _, task_id, answer in MULTI_TURN]
    expected = [verdict for verdict, _, _ in MULTI_TURN]
    cases = [case(task_id, turns=[[plain(step) for step in steps] for steps in turns]) for task_id, turns in answers]
    assert official.verdicts(bfcl, cases) == expected
    ends = played(runner, answers)
    assert [end.info["check"] for end in ends] == expected
    assert [end.success for end in ends] == [verdict == "valid" for verdict in expected]
    assert all(end.reward == float(end.success is True) for end in ends)


def test_single_turn_answers_score_as_in_the_benchmark(bfcl: Path, runner: asyncio.Runner):
    answers = [
        (task_id, [ToolCall(name=name, arguments=arguments) for name, arguments in calls])
        for _, task_id, calls in SINGLE_TURN
    ]
    expected = [verdict for verdict, _, _ in SINGLE_TURN]
    assert official.verdicts(bfcl, [case(task_id, calls=plain(calls)) for task_id, calls in answers]) == expected
    ends = played(runner, [(task_id, [[calls]]) for task_id, calls in answers])
    assert [end.info["check"] for end in ends] == expected
    assert [end.reward for end in ends] == [float(verdict == "valid") for verdict in expected]
