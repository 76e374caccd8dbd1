import asyncio
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bough.chat import tool_calls
from bough.environments.base import EnvironmentFailedError, Observation, configured
from bough.environments.isolated import Isolated
from bough.errors import InputError
from bough.sandbox.base import BrokenError, NoSandboxError, Result, SandboxError, SandboxLimits
from bough.sandbox.worker import SandboxWorker
from bough.types import Task, ToolCall
from bough.worlds.interpreter import Grade, code, environment, math
from bough.worlds.interpreter.environment import TOOL, Interpreter

MATH = Task(id="m", data={"kind": "math", "problem": "2 + 2?", "answer": "4"})
LIMITS = SandboxLimits(timeout_s=5, memory_mb=100)
ADD = {"kind": "code", "problem": "Write f.", "tests": ["assert f(1) == 2", "assert f(2) == 2"]}


def call(code: str) -> str:
    return tool_calls.call_text(ToolCall(name=TOOL, arguments={"code": code}))


def played(task: Task, *replies: str, options: dict[str, Any] | None = None, step_timeout_s: float = 60.0) -> Any:
    async def play() -> list[Observation]:
        world = configured(Interpreter, options or {})(task)
        world.step_timeout_s = step_timeout_s
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
    wrong = [ToolCall(name="bash", arguments={"code": "1"}), ToolCall(name=TOOL)]
    wrong += [ToolCall(name=TOOL, arguments=given) for given in ({"code": 1}, {"code": "1", "language": "c"})]
    calls = "".join(map(tool_calls.call_text, wrong))
    _, broken, unknown, end = played(MATH, '<tool_call>{"name": "code_interpreter"', calls, "\\boxed{4}")
    assert broken.error == "malformed" and "not closed" in broken.text and not broken.done
    assert unknown.error == "tool_misuse" and unknown.messages[0].role == "tool" and not unknown.done
    assert "there is no tool 'bash'" in unknown.messages[0].content
    assert {message.content for message in unknown.messages[1:]} == {
        'Error: code_interpreter takes one argument, "code", a text.'
    }
    assert end.success and end.info["tool_calls"] == 0


def test_code_that_runs_too_long_is_told_and_the_next_call_works():
    _, slow, after = played(MATH, call("while True:\n    pass"), call("1"), options={"timeout_s": 2})
    assert "ran longer than 2 s" in slow.text and after.text == "1"


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

    assert asyncio.run(Interpreter(MATH).expert()) is None, "there is no expert in other problems"
    for computed, end in asyncio.run(all_of_them()):
        assert end.success and computed.messages[0].content == end.info["grade"]["answer"]


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
    assert all("timeout_s" not in task.data and "file" not in task.data for task in tasks)
    train = [list(Interpreter.tasks(options, seed=seed)) for seed in (0, 1)]
    assert train[0] != train[1] and sorted(t.id for t in train[0]) == sorted(t.id for t in train[1])
    assert 65 <= len(train[0]) <= 92


def test_an_empty_file_is_refused(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="contains no problem"):
        next(Interpreter.tasks(Interpreter.Options(file=tmp_path / "empty.jsonl")))


def test_consent_to_no_sandbox_is_the_users_and_never_a_tasks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(environment.CONSENT, "0")
    asked: list[bool] = []

    class Seen:
        def __init__(self, limits: SandboxLimits, *, unsafe: bool, **_: Any) -> None:
            asked.append(unsafe)

    monkeypatch.setattr(environment, "Sandbox", Seen)

    async def ask(options: dict[str, Any]) -> None:
        task = Task(id="m", data={**MATH.data, "unsafe_no_sandbox": True})
        with pytest.raises(AttributeError):
            await configured(Interpreter, options)(task).step(call("1"))

    asyncio.run(ask({}))
    asyncio.run(ask({"unsafe_no_sandbox": True}))
    monkeypatch.setenv(environment.CONSENT, "1")
    asyncio.run(ask({}))
    assert asked == [False, True, True]


def test_a_task_sets_no_limit(caplog: pytest.LogCaptureFixture):
    task = Task(id="m", data={**MATH.data, "timeout_s": 1e6, "memory_mb": 1 << 20})
    assert Interpreter(task).limits == Interpreter(MATH).limits
    assert [record.args[1] for record in caplog.records if record.args] == ["timeout_s", "memory_mb"]


def test_a_sandbox_that_cannot_be_had_is_the_worlds_fault(monkeypatch: pytest.MonkeyPatch):
    def nothing(*_: Any, **__: Any) -> Any:
        raise SandboxError("no more memory")

    monkeypatch.setattr(environment, "shared", nothing)
    for task, reply in ((MATH, call("1")), (Task(id="c", data=ADD), "```python\nx = 1\n```")):
        with pytest.raises(EnvironmentFailedError, match="no more memory"):
            played(task, reply)


def test_a_sandbox_that_the_program_breaks_is_the_programs_fault(monkeypatch: pytest.MonkeyPatch):
    async def breaks(*_: Any, **__: Any) -> Any:
        raise BrokenError("the sandbox broke")

    monkeypatch.setattr(SandboxWorker, "run", breaks)
    _, told = played(MATH, call("1"))
    assert "broke the interpreter" in told.text and not told.done and told.info == {"killed": ["broken"]}
    _, end = played(Task(id="c", data=ADD), "```python\nx = 1\n```")
    assert end.reward == 0.0 and end.success is False


def test_a_grader_that_raises_makes_a_wrong_answer(monkeypatch: pytest.MonkeyPatch):
    def raises(*_: Any, **__: Any) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(code, "grade", raises)
    _, end = played(Task(id="c", data=ADD), "```python\nx = 1\n```")
    assert end.reward == 0.0 and end.info["grade"] == {"reason": "the grader failed: RecursionError: too deep"}


def test_all_calls_of_a_reply_share_less_than_the_time_of_a_step():
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(100)"
    _, slow, after = played(MATH, call(stubborn) + call("1") + call("2"), call("3"), step_timeout_s=2.0)
    first, *others = [message.content for message in slow.messages]
    assert "ran longer than 1.4 s" in first or "broke the interpreter" in first
    assert others == ["Error: not run. All calls of one reply share 1.4 s, and they are used up."] * 2
    assert slow.info["killed"][1:] == ["time", "time"] and after.text == "3"


def test_a_program_that_sleeps_through_its_tests_ends_before_the_step_does():
    sleepy = "```python\nimport time\ndef f(x):\n    while True:\n        try:\n            time.sleep(9)\n"
    sleepy += "        except BaseException:\n            pass\n```"
    _, end = played(Task(id="c", data=ADD), sleepy, step_timeout_s=6.0)
    assert end.reward == 0.0 and end.info["grade"]["passed"] == 0


BUSY_S = 5.0
# A task, the right reply, and the pools that the reply needs.
WAITING: list[tuple[dict[str, Any], str, tuple[Any, ...]]] = [
    (
        {"kind": "math", "problem": "Expand (x+1)^2.", "answer": "x^2+2x+1"},
        "\\boxed{1+2x+x^2}",
        (("math", SandboxLimits(), {"warm_up": math.WARM_UP}),),
    ),
    (
        {"kind": "code", "problem": "Write f.", "tests": ["assert f(1) == 2"]},
        "```python\ndef f(x): return x + 1\n```",
        (("program", code.LIMITS, {"hidden": True}), ("tests", code.LIMITS, {})),
    ),
    (MATH.data, call("2 + 2"), (("tool", Interpreter(MATH).limits, {"hidden": True}),)),
]


async def play_while_busy(data: dict[str, Any], reply: str, pools: tuple[Any, ...]) -> tuple[Observation, float]:
    """The end of a step that needs these pools while their places are taken, and how long it took."""

    async def occupy(use: str, limits: SandboxLimits, more: dict[str, Any]) -> None:
        runner = environment.shared(use, limits, **more)
        if use == "math":
            await runner.run(f"import time; time.sleep({BUSY_S})")
        else:
            async with runner.session() as session:
                await session.run(f"import time; time.sleep({BUSY_S})")

    others = [asyncio.create_task(occupy(*pool)) for pool in pools]
    world = Isolated(Interpreter, Task(id="w", data=data), step_timeout_s=BUSY_S - 1)
    try:
        await world.start()
        # The pools' keepers may take longer to start than a program to run.
        while not all(environment.shared(use, limits, **more)._busy for use, limits, more in pools):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        return await world.step(reply), time.monotonic() - begin
    finally:
        await asyncio.gather(*others)
        await world.close()


def test_waiting_for_a_sandbox_neither_fails_the_agent_nor_loses_the_episode(monkeypatch: pytest.MonkeyPatch):
    """The pools have one place each, taken for longer than a step may last."""
    monkeypatch.setattr("bough.sandbox.pool.LEAST_SESSIONS", 1)
    monkeypatch.setattr("bough.sandbox.pool.SESSIONS_PER_CORE", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})

    async def play() -> list[tuple[Observation, float]]:
        try:
            return await asyncio.gather(*(play_while_busy(*one) for one in WAITING))
        finally:
            await Interpreter.shutdown()

    algebra, program, tool = asyncio.run(play())
    assert min(took_s for _, took_s in (algebra, program, tool)) > BUSY_S - 1, "it has not waited"
    assert algebra[0].reward == program[0].reward == 1.0, (algebra, program)
    assert tool[0].text == "4" and not tool[0].info


LEAKS = """
import importlib.util, os, sys
seen = [repr(os.environ), repr(sys.argv), repr(sys.modules.keys()), repr(globals())]
for folder in ("/", "/tmp", "/dev/shm", "/proc", "/proc/self", "/proc/1", "/bough"):
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            seen.append(name + open(os.path.join(folder, name), errors="replace").read(100_000))
        except (OSError, ValueError):
            pass
packages = []
for name in ("math_verify.parser", "bough.environments.registry"):
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    packages.append(found is not None)
print(packages, "19" + "73" in "".join(seen))
"""


@pytest.mark.parametrize("hidden", [{"answer": "1973"}, {"kind": "code", "tests": ["assert f() == 1973"]}])
def test_the_tool_sees_neither_the_answer_nor_the_graders(hidden: dict[str, Any]):
    _, seen = played(Task(id="x", data={"kind": "math", "problem": "?"} | hidden), call(LEAKS))
    assert seen.text == "[False, False] False"


def test_what_runs_programs_has_never_held_tests():
    async def uses() -> dict[str, set[int]]:
        world = Interpreter(Task(id="c", data=ADD))
        await world.step(call("1"))
        await world.step("```python\ndef f(x):\n    return 2\n```")
        await world.close()
        kinds = environment._SHARED[asyncio.get_running_loop()]
        workers = {key[0]: {worker.pid for worker in kind._idle} for key, kind in kinds.items()}
        await Interpreter.shutdown()
        return workers

    workers = asyncio.run(uses())
    assert set(workers) == {"tool", "program", "tests"} and all(len(pids) == 1 for pids in workers.values())
    assert len(set.union(*workers.values())) == 3


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"kind": "code", "problem": "?", "tests": ["x = 1"]}, "a code problem needs tests that assert something"),
        ({"kind": "code", "problem": "?", "tests": "assert f"}, "needs tests as a list"),
        ({"kind": "code", "problem": "?", "tests": ["assert f("]}, "that are Python"),
        (ADD | {"tests": ["assert isclose(f(1), 1)"]}, "needs tests that import or define isclose"),
        ({"kind": "math", "problem": "?"}, "a math problem needs answer"),
        ({"kind": "math", "answer": "1"}, "needs problem as text"),
        ({"kind": "poem", "problem": "Write."}, "kind is 'poem'"),
    ],
)
def test_a_task_that_cannot_be_graded_is_told_at_its_start(data: dict[str, Any], complaint: str):
    with pytest.raises(InputError, match=complaint):
        played(Task(id="t", data=data))


@pytest.mark.parametrize(("step_timeout_s", "expected"), [(5.0, 3.5), (60.0, math.TIMEOUT_S)])
def test_algebra_takes_less_than_the_time_of_a_step(
    monkeypatch: pytest.MonkeyPatch, step_timeout_s: float, expected: float
):
    given: list[Any] = []

    async def grade(answer: str, gold: str, runner: Any, **more: Any) -> Grade:
        given.append(more)
        return Grade(0.0)

    monkeypatch.setattr(math, "grade", grade)
    task = Task(id="m", data={"kind": "math", "problem": "Expand $(x+1)^2$.", "answer": "x^2+2x+1"})
    played(task, "\\boxed{(x+1)^2}", step_timeout_s=step_timeout_s)
    assert given == [{"question": "Expand $(x+1)^2$.", "timeout_s": expected}]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(stdout="a\n", value="2"), "a\n2"),
        (Result(), "(no output)"),
        (Result(stdout="a\n", stderr="w\n", error="E: x"), "a\nw\nE: x"),
        (Result(value="<f at 0xffff9a2b3c40>"), "<f at 0x…>"),
        (Result(stdout="0x1f"), "0x1f"),
        (
            Result(stdout="a\n", timed_out=True, error="KeyboardInterrupt", alive=True),
            "a\nError: the code ran longer than 5 s and was stopped.",
        ),
        (
            Result(timed_out=True, killed="time"),
            "Error: the code ran longer than 5 s and was stopped.\nThe interpreter was restarted.",
        ),
        (
            Result(killed="memory"),
            "Error: the code used more than 100 MB of memory and was stopped.\nThe interpreter was restarted.",
        ),
    ],
)
def test_a_result_reads_as_in_a_notebook(result: Result, text: str):
    assert environment.result_text(result, LIMITS) == text


THERE = ["bubblewrap is /usr/bin/bwrap.", "Code runs in a sandbox of bubblewrap."]
INSTEAD = "Code runs in a sandbox of namespaces."
FAILED = ["Installing bubblewrap …", "apt-get could not install bubblewrap.", INSTEAD]
GROUPS = "Each sandbox has a control group, which limits its memory and processes."
ASK = f"bubblewrap is not installed; {environment.registry.NOT_ALLOWED}. Ask for: sudo apt-get install bubblewrap"


@pytest.mark.parametrize(
    ("there", "installer", "works", "groups", "said"),
    [
        (True, None, False, True, [*THERE, GROUPS]),
        (False, ["apt-get"], True, False, ["Installing bubblewrap …", *THERE]),
        (False, ["apt-get"], False, False, FAILED),
        (False, None, False, False, [ASK, INSTEAD]),
    ],
)
def test_setup_installs_bubblewrap_where_it_may_and_reports_the_sandbox(
    monkeypatch, there, installer, works, groups, said
):
    found = {"bwrap": "/usr/bin/bwrap"} if there else {}

    def install(_, package):
        assert package == "bubblewrap"
        found.update({"bwrap": "/usr/bin/bwrap"} if works else {})
        return works

    monkeypatch.setattr(environment.shutil, "which", found.get)
    monkeypatch.setattr(environment.registry, "installer", lambda: installer)
    monkeypatch.setattr(environment.registry, "install", install)
    monkeypatch.setattr(environment.group, "place", lambda user: groups or None)
    monkeypatch.setattr(environment.isolation, "choose", lambda: "bubblewrap" if found else "namespaces")
    assert list(Interpreter.setup()) == said


def test_another_system_than_linux_is_refused_with_a_sentence(monkeypatch):
    monkeypatch.setattr(environment.isolation.sys, "platform", "darwin")
    with pytest.raises(NoSandboxError, match=r"needs Linux, and this is darwin"):
        list(Interpreter.setup())
    with pytest.raises(NoSandboxError, match="needs Linux"):
        Interpreter.lacks()
