from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

import pytest

from bough.chat import tool_calls
from bough.environments.base import EnvironmentFailedError, Observation, configured
from bough.environments.check import check
from bough.errors import InputError
from bough.sandbox.base import SandboxError
from bough.sandbox.pool import Sandbox
from bough.types import Message, Task, ToolCall
from bough.worlds.functions import back_ends, benchmark
from bough.worlds.functions.conversation import MAX_STEPS, MORE_FUNCTIONS
from bough.worlds.functions.environment import CANNOT, Functions

pytestmark = pytest.mark.usefixtures("bfcl")
BASE, MISS_FUNC = Task(id="multi_turn_base_0"), Task(id="multi_turn_miss_func_0")
ONE_TURN = Task(id="multi_turn_base_50")  # one user turn, with a vehicle
GOLD = "expert"  # stands for what the expert says


def call(name: str, **arguments: Any) -> str:
    return tool_calls.call_text(ToolCall(name=name, arguments=arguments))


class Play(Protocol):
    def __call__(
        self, task: Task, *replies: str | Message, options: dict[str, Any] | None = None
    ) -> list[Observation]: ...


@pytest.fixture
def played(runner: asyncio.Runner) -> Play:
    """Plays an episode: the observations at its start and after each reply."""

    async def play(task: Task, replies: tuple[str | Message, ...], options: dict[str, Any]) -> list[Observation]:
        world = configured(Functions, options)(task)
        seen = [await world.start()]
        for reply in replies:
            seen.append(await world.step(str(await world.expert()) if reply == GOLD else reply))
        await world.close()
        return seen

    return lambda task, *replies, options=None: runner.run(play(task, replies, options or {}))


def names(observation: Observation) -> set[str]:
    return {tool["function"]["name"] for tool in observation.tools}


def test_the_start_has_the_rules_the_request_and_the_functions(played: Play):
    (start,) = played(BASE)
    assert [message.role for message in start.messages] == ["system", "user"]
    assert "reply without a call" in start.messages[0].content
    assert start.messages[1].content.startswith("Move 'final_report.pdf' within document directory")
    assert {"mv", "grep", "post_tweet"} <= names(start) and len(start.tools) == 32


def test_calls_are_made_and_a_reply_without_one_brings_the_next_request(played: Play):
    _, cd, both, grep = played(BASE, call("cd", folder="document"), f"I look.\n{call('pwd')}\n{call('ls')}", "Done.")
    assert [(one.role, one.name, one.content) for one in cd.messages + both.messages] == [
        ("tool", "cd", '{"current_working_directory": "document"}'),
        ("tool", "pwd", '{"current_working_directory": "/workspace/document"}'),
        ("tool", "ls", '{"current_directory_content": ["final_report.pdf", "previous_report.pdf"]}'),
    ]
    assert cd.error is None and cd.progress == 0.0 and not cd.done
    assert [one.role for one in grep.messages] == ["user"] and "search using grep" in grep.messages[0].content


def test_progress_is_the_share_of_turns_passed_before_the_first_failure(played: Play):
    seen = played(BASE, GOLD, GOLD, GOLD, GOLD, "I do not want to.", GOLD, GOLD, GOLD, GOLD, GOLD, GOLD, GOLD)
    assert [one.progress for one in seen] == [None, 0.0, 0.0, 0.0, *[0.25] * 9]
    end = seen[-1]
    assert end.terminated and end.success is False and end.reward == 0.0
    assert end.info == {"check": "multi_turn:empty_turn_model_response"} and seen[4].info == {"check": "valid"}
    assert [one.reward for one in seen[:-1]] == [None] * 12


def test_an_episode_can_end_at_the_first_turn_that_fails(played: Play):
    *_, end = played(BASE, "No.", options={"stop_at_failure": True})
    assert end.terminated and end.success is False and end.progress == 0.0
    *_, going_on = played(BASE, "No.")
    assert not going_on.done


def test_functions_that_are_held_back_appear_in_their_turn(played: Play):
    start, *_, cannot, more = played(MISS_FUNC, *[GOLD] * 8)
    assert "sort" not in names(start) and "mv" in names(start)
    assert cannot.action == "Done." and "sort the 'final_report.pdf'" in cannot.text
    shown, _, said = more.text.rpartition("\n")
    assert more.action == CANNOT and said == MORE_FUNCTIONS
    assert [one["function"]["name"] for one in json.loads(shown)] == ["sort"]


@pytest.mark.parametrize("name", [*benchmark.MULTI_TURN, "parallel_multiple", "live_irrelevance", "simple_javascript"])
def test_the_expert_wins(name: str, runner: asyncio.Runner):
    task = next(iter(Functions.tasks(Functions.Options(sets=[name]), seed=3)))

    async def play() -> Observation:
        world = Functions(task)
        seen = await world.start()
        while not seen.done:
            seen = await world.step(str(await world.expert()))
            assert seen.error is None
        return seen

    end = runner.run(play())
    assert end.success is True and end.reward == 1.0 and end.progress == 1.0


def test_a_turn_with_more_gold_calls_than_steps_is_won_with_several_calls_per_reply():
    world = next(
        Functions(Task(id=one.id))
        for one in benchmark.entries("multi_turn_long_context").values()
        if len(one.answer[0]) > MAX_STEPS
    )
    first = asyncio.run(world.expert())
    assert str(first).count("<tool_call>") == 2


def test_the_expert_makes_the_gold_calls_that_are_missing(played: Play):
    """One was made too early, and one that was not asked for changes nothing."""
    first = [call("cd", folder="document"), call("pwd")]
    _, _, _, make, move, end = played(BASE, *first, GOLD, GOLD, GOLD)
    assert [make.messages[0].name, move.messages[0].name] == ["mkdir", "mv"]
    assert end.info == {"check": "valid"} and end.progress == 0.25


def test_too_many_replies_with_calls_in_one_turn_lose(played: Play):
    *_, last, end = played(ONE_TURN, *[call("displayCarStatus", option="fuel")] * (MAX_STEPS + 1))
    assert not last.done and end.terminated and end.success is False and end.stop == "step_limit"
    assert end.messages[0].role == "tool" and end.reward == 0.0


def test_a_call_that_cannot_be_read_ends_the_turn_as_in_the_benchmark(played: Play):
    _, seen = played(BASE, "<tool_call>{'name': 'ls'}</tool_call>")
    assert seen.error == "malformed" and "search using grep" in seen.text
    _, seen = played(Task(id="simple_python_0"), "<tool_call>calculate_triangle_area(10, 5)</tool_call>")
    assert seen.error == "malformed" and seen.success is False and seen.reward == 0.0


def test_native_calls_get_their_results_by_id(played: Play):
    reply = Message(role="assistant", tool_calls=[ToolCall(name="pwd", id="a1"), ToolCall(name="ls", id="a2")])
    _, seen = played(BASE, reply)
    assert [message.tool_call_id for message in seen.messages] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("task_id", "reply", "success"),
    [
        ("irrelevance_0", "None of the functions can do that.", True),
        ("irrelevance_0", call("determine_body_mass_index", weight=70, height=1.8), False),
        ("live_relevance_0-0-0", call("anything"), True),
        ("live_relevance_0-0-0", "I could do that.", False),
    ],
)
def test_whether_to_call_at_all(task_id: str, reply: str, success: bool, played: Play):
    (_, end) = played(Task(id=task_id), reply)
    assert end.done and end.success is success and end.reward == float(success)


def test_a_task_with_its_own_system_message_keeps_it(played: Play):
    (start,) = played(Task(id="live_irrelevance_125-11-0"))
    row = benchmark.entry("live_irrelevance_125-11-0").row["question"][0]
    assert [message.role for message in start.messages] == ["system", *[one["role"] for one in row[1:]]]
    assert start.messages[0].content.endswith(row[0]["content"])


HOSTILE = Task(id="multi_turn_base_15")


def test_a_call_that_would_never_end_is_stopped_and_has_no_effect(played: Play):
    reply = [call("touch", file_name="DataSet1.csv"), call("power", base=10, exponent=10**9), call("ls")]
    _, seen, after, next_turn = played(HOSTILE, "\n".join(reply), call("ls", a=True), "Done.")
    made, stopped, not_run = [message.content for message in seen.messages]
    assert made == "None" and stopped == back_ends.STOPPED and not_run == back_ends.NOT_RUN
    assert seen.error == "tool_misuse" and "DataSet1.csv" in after.text and after.error is None
    assert next_turn.info == {"check": "valid"}


HOSTILE_CALLS = [
    ("power", {"base": 9, "exponent": 20_000}, "Exceeds the limit (4300 digits)"),
    ("square_root", {"number": 2, "precision": -1}, "valid range for prec"),
    ("add", {"a": [[[]]], "b": {}}, "Both inputs must be numbers"),
    ("mean", {"numbers": [1], "self": 1}, "multiple values for argument 'self'"),
    ("os.system", {"command": "ls"}, "name 'os.system' is not defined"),
    ("__class__", {}, "name '__class__' is not defined"),
    ("_load_scenario", {"scenario": {}}, "name '_load_scenario' is not defined"),
    ("eval", {"source": "1"}, "name 'eval' is not defined"),
    ("exit", {}, "Function call exit is not allowed."),
    ("pwd", {"x": "');import os;('"}, "unexpected keyword argument 'x'"),
    ("ask", {"text": "valid"}, "name 'ask' is not defined"),
]


def test_hostile_calls_get_a_sentence(played: Play):
    _, seen = played(HOSTILE, "\n".join(call(name, **arguments) for name, arguments, _ in HOSTILE_CALLS))
    assert seen.error == "tool_misuse"
    for (name, _, expected), message in zip(HOSTILE_CALLS, seen.messages, strict=True):
        assert message.name == name and expected in message.content


def test_a_sandbox_that_breaks_is_not_the_agents_failure(monkeypatch: pytest.MonkeyPatch, played: Play):
    async def broken(*_: Any, **__: Any) -> None:
        raise SandboxError("no room")

    monkeypatch.setattr(Sandbox, "run", broken)
    with pytest.raises(EnvironmentFailedError, match="no room"):
        played(BASE, call("ls"))


def test_splits_share_no_scenario_and_seeds_fix_the_order():
    options = Functions.Options(sets=["multi_turn", "live_simple"])
    tasks = {split: list(Functions.tasks(options, split=split)) for split in ("train", "seen", "unseen", "all")}
    families = {split: {benchmark.entry(task.id).family for task in found} for split, found in tasks.items()}
    assert not families["train"] & families["unseen"] and not families["train"] & families["seen"]
    assert not families["seen"] & families["unseen"]
    assert len(tasks["all"]) == 800 + 258 and len(tasks["train"]) > 780 and len(tasks["unseen"]) > 70
    assert sum(map(len, tasks.values())) == 2 * (800 + 258) - 2  # two cannot be won
    assert tasks["train"] == list(Functions.tasks(options, split="train"))
    assert tasks["train"] != list(Functions.tasks(options, split="train", seed=1))
    with pytest.raises(InputError, match="split is 'test'"):
        next(iter(Functions.tasks(options, split="test")))


def test_it_keeps_the_contract(runner: asyncio.Runner):
    report = runner.run(check(Functions, None, [ONE_TURN, Task(id="parallel_1")]))
    assert report.found == {}


def test_setup_says_what_there_is():
    lines = list(Functions.setup())
    assert lines[0].startswith("BFCL 2026.3.23: 4,441 tasks in ") and lines[1].startswith("Functions run in ")
