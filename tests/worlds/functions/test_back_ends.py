from __future__ import annotations

import asyncio

import pytest

from bough.sandbox.base import SandboxError
from bough.types import ToolCall
from bough.worlds.functions import back_ends, benchmark, inside
from bough.worlds.functions.conversation import Conversation


def scenario(task_id: str) -> dict[str, object]:
    return Conversation(benchmark.entry(task_id)).scenario


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"name": name, "arguments": arguments})


def test_calls_that_were_already_made_are_played_but_not_told(runner: asyncio.Runner):
    done = [call("cd", folder="document"), call("mkdir", dir_name="temp")]
    told = runner.run(back_ends.results(scenario("multi_turn_base_0"), done, [call("ls")]))
    assert told == ['{"current_directory_content": ["final_report.pdf", "previous_report.pdf", "temp"]}']


def test_of_a_long_result_the_agent_reads_the_beginning(runner: asyncio.Runner):
    text = "x" * (inside.LONGEST_RESULT + 10)
    done = [call("touch", file_name="long.txt"), call("echo", content=text, file_name="long.txt")]
    (told,) = runner.run(back_ends.results(scenario("multi_turn_base_0"), done, [call("cat", file_name="long.txt")]))
    assert told is not None and told.endswith("x … 30 characters left out") and len(told) < len(text) + 30


def test_a_state_that_cannot_be_compared_is_not_the_right_one(runner: asyncio.Runner):
    # A folder that contains itself, through the benchmark's own bugs or a thousand nested ones.
    nested = [step for _ in range(1100) for step in ([call("mkdir", dir_name="d")], [call("cd", folder="d")])]
    verdict = runner.run(back_ends.check_turns(scenario("multi_turn_base_0"), [nested], [[step[0] for step in nested]]))
    assert verdict in ("multi_turn:RecursionError", "check_stopped")


def test_a_fault_of_ours_is_not_the_agents(runner: asyncio.Runner):
    with pytest.raises(SandboxError, match="the benchmark cannot be run: KeyError: 'NoSuchAPI'"):
        runner.run(back_ends.results({"classes": ["NoSuchAPI"], "config": {}}, [], [call("ls")]))
