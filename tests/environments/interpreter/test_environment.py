import asyncio
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bough.environments.base import Observation, WorldError
from bough.environments.interpreter import sandboxes, tool
from bough.environments.interpreter.environment import Interpreter
from bough.errors import InputError
from bough.sandbox.base import Limits, SandboxError
from bough.speech import hermes
from bough.types import Task, ToolCall

MATH = Task(id="m", data={"kind": "math", "problem": "2 + 2?", "answer": "4"})
ADD = {"kind": "code", "problem": "Write f.", "tests": ["assert f(1) == 2", "assert f(2) == 2"]}


def call(code: str) -> str:
    return hermes.call_text(ToolCall(name=tool.NAME, arguments={"code": code}))


def played(task: Task, *replies: str) -> list[Observation]:
    async def play() -> list[Observation]:
        world = Interpreter(task)
        try:
            return [await world.start(), *[await world.step(reply) for reply in replies]]
        finally:
            await world.close()
            await Interpreter.shutdown()

    return asyncio.run(play())


def test_the_start_has_the_rules_the_problem_and_the_tool():
    (start,) = played(MATH)
    assert [message.role for message in start.messages] == ["system", "user"]
    assert "\\boxed{}" in start.messages[0].content and start.messages[1].content == "2 + 2?"
    assert start.tools[0]["function"]["name"] == "code_interpreter"


def test_code_is_run_its_names_live_on_and_the_answer_is_graded():
    _, one, two, end = played(MATH, f"I set x.\n{call('x = 2')}", call("print('hi')\nx + 2"), "So it is \\boxed{4}.")
    assert [(message.role, message.name, message.content) for message in one.messages + two.messages] == [
        ("tool", "code_interpreter", "(no output)"),
        ("tool", "code_interpreter", "hi\n4"),
    ]
    assert not one.done and one.reward is None and one.error is None and one.action == call("x = 2")
    assert end.terminated and end.success is True and end.reward == 1.0
    assert end.info == {"grade": {"answer": "4"}, "tool_calls": 2}


def test_without_persistence_each_call_starts_from_nothing():
    task = Task(id="m", data={**MATH.data, "persistent": False})
    _, _, second = played(task, call("x = 2"), call("'x' in globals()"))
    assert second.messages[0].content == "False"


def test_several_calls_have_a_result_each():
    _, both = played(MATH, call("1") + call("1 / 0"))
    assert [message.content.splitlines()[-1] for message in both.messages] == [
        "1",
        "ZeroDivisionError: division by zero",
    ]


def test_a_wrong_answer_and_none_at_all_end_with_nothing():
    for reply in ("\\boxed{5}", "It is 4.", ""):
        _, end = played(MATH, reply)
        assert end.terminated and end.success is False and end.reward == 0.0 and end.text == "Wrong."


def test_broken_calls_are_told_and_the_episode_goes_on():
    _, broken, unknown, end = played(
        MATH, '<tool_call>{"name": "code_interpreter"', '<tool_call>{"name": "bash"}</tool_call>', "\\boxed{4}"
    )
    assert broken.error == "malformed" and "not closed" in broken.text and not broken.done
    assert unknown.error == "tool_misuse" and unknown.messages[0].role == "tool" and not unknown.done
    assert end.success and end.info["tool_calls"] == 0


def test_code_that_runs_too_long_is_told_and_the_next_call_works():
    task = Task(id="m", data={**MATH.data, "timeout_s": 0.5})
    _, slow, after = played(task, call("while True:\n    pass"), call("1"))
    assert "ran longer than 0.5 s" in slow.text and after.text == "1"


def test_programs_are_graded_by_their_tests():
    _, end = played(Task(id="c", data=ADD), "```python\ndef f(x):\n    return 2\n```")
    assert end.success and end.reward == 1.0
    _, end = played(Task(id="c", data=ADD), "```python\ndef f(x):\n    return x\n```")
    assert end.success is False and end.reward == 0.5 and end.text == "Partly right: 0.50."
    _, end = played(Task(id="c", data=ADD), "I cannot.")
    assert end.reward == 0.0 and end.info["grade"]["parsable"] is False


def test_a_row_of_a_file_is_a_task_as_it_is():
    pytest.importorskip("math_verify")
    start, end = played(Task(id="r", data={"question": "2 + 2?", "answer": "#### 4"}), "\\boxed{4}")
    assert start.messages[1].content == "2 + 2?" and end.success


def test_problems_of_our_own_are_solved_by_the_expert():
    async def play(task: Task) -> list[Observation]:
        world, seen = Interpreter(task), []
        await world.start()
        while not seen or not seen[-1].done:
            reply = await world.expert()
            assert reply is not None
            seen.append(await world.step(reply))
        await world.close()
        return seen

    async def all_of_them() -> list[list[Observation]]:
        tasks = islice(Interpreter.tasks(Interpreter.Options()), 8)
        try:
            return [await play(task) for task in tasks]
        finally:
            await Interpreter.shutdown()

    for computed, end in asyncio.run(all_of_them()):
        assert end.success and computed.messages[0].content == end.info["grade"]["answer"]


def test_nobody_is_an_expert_in_other_problems():
    assert asyncio.run(Interpreter(MATH).expert()) is None


def test_splits_share_no_problem_and_a_seed_gives_its_tasks():
    def some(split: str, seed: int = 0) -> list[Task]:
        return list(islice(Interpreter.tasks(Interpreter.Options(), split=split, seed=seed), 10))

    names = {split: {task.id for task in some(split)} for split in ("train", "seen", "unseen")}
    assert not names["train"] & names["seen"] and not names["train"] & names["unseen"]
    assert not names["seen"] & names["unseen"]
    assert some("seen") == some("seen") != some("seen", seed=1)
    with pytest.raises(InputError, match="choose one of train, seen, unseen"):
        some("test")


def test_a_file_gives_each_of_its_problems_once_over_all_splits(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"Write f{n}.", "tests": [f"assert f{n}() == {n}"]} for n in range(100)]
    file.write_text("\n".join(map(json.dumps, rows)))
    options = Interpreter.Options(file=file, timeout_s=3)
    tasks = [task for split in ("train", "seen", "unseen") for task in Interpreter.tasks(options, split=split)]
    assert {task.data["problem"] for task in tasks} == {row["prompt"] for row in rows} and len(tasks) == 100
    assert all(task.data["timeout_s"] == 3 and "file" not in task.data for task in tasks)
    train = [list(Interpreter.tasks(options, seed=seed)) for seed in (0, 1)]
    assert train[0] != train[1] and sorted(t.id for t in train[0]) == sorted(t.id for t in train[1])
    assert 65 <= len(train[0]) <= 92


def test_a_file_and_generators_at_once_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="cannot both be given"):
        next(Interpreter.tasks(Interpreter.Options(file=tmp_path, reasoning=["chain_sum"])))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no problem"):
        next(Interpreter.tasks(Interpreter.Options(file=tmp_path / "empty.jsonl")))


def test_consent_to_no_sandbox_is_the_users_and_never_a_tasks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(sandboxes.CONSENT, "0")
    asked: list[bool] = []

    class Seen:
        def __init__(self, limits: Limits, *, unsafe: bool, warm_up: str) -> None:
            asked.append(unsafe)

    monkeypatch.setattr(sandboxes, "Sandbox", Seen)

    async def ask() -> None:
        with pytest.raises(AttributeError):
            await Interpreter(Task(id="m", data={**MATH.data, "unsafe_no_sandbox": True})).step(call("1"))

    asyncio.run(ask())
    next(Interpreter.tasks(Interpreter.Options(unsafe_no_sandbox=True)))
    assert os.environ[sandboxes.CONSENT] == "1"
    asyncio.run(ask())
    assert asked == [False, True]


def test_a_sandbox_that_breaks_is_the_worlds_fault(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Any:
        raise SandboxError("no more memory")

    monkeypatch.setattr(sandboxes, "shared", broken)
    with pytest.raises(WorldError, match="no more memory"):
        played(MATH, call("1"))


def test_episodes_share_a_sandbox_but_no_names():
    async def play() -> list[str]:
        one, other = Interpreter(MATH), Interpreter(MATH)
        try:
            await asyncio.gather(one.step(call("x = 1")), other.step(call("x = 2")))
            answers = await asyncio.gather(one.step(call("x")), other.step(call("x")))
            return [answer.text for answer in answers]
        finally:
            await one.close()
            await one.close()
            await other.close()
            await Interpreter.shutdown()

    assert asyncio.run(play()) == ["1", "2"]


def test_an_unknown_kind_is_told():
    with pytest.raises(InputError, match="kind is 'poem'"):
        played(Task(id="p", data={"kind": "poem", "problem": "Write."}))
