"""What the agent's arguments make a tool raise is the agent's failure; what fails around it loses the episode."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.chat import tool_calls
from bough.config.groups import LimitsConfig
from bough.environments import tools
from bough.environments.base import EnvironmentFailedError, Observation
from bough.environments.check import check
from bough.environments.tools import ToolEnvironment, raised_in, tool
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.types import Message, Task, ToolCall, Trajectory
from tests.environments.adapters import playing
from tests.rollouts.players import Script

LIBRARY = "a client's own error"


class ClientError(Exception):
    """As HTTP clients have it: no OSError, but raised from one."""


def recursion() -> None:
    recursion()


def chained() -> None:
    try:
        raise ConnectionResetError("reset")
    except OSError as error:
        raise ClientError(LIBRARY) from error


def grouped() -> None:
    raise ExceptionGroup("both", [ValueError("a"), ConnectionError("b")])


def unspeakable() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError

    raise OddError


CAUSED: dict[str, Any] = {
    "ValueError": lambda: int("five"),
    "KeyError": lambda: {}["missing"],
    "UnicodeEncodeError": lambda: "é".encode("ascii"),
    "RecursionError": recursion,
    "StopIteration": lambda: next(iter([])),
    "error": lambda: __import__("struct").unpack("<i", b""),
    "FileNotFoundError": lambda: Path("/no/such/file").read_text(),
    "OSError": lambda: Path("x" * 5000).read_text(),
    "MemoryError": lambda: " " * sys.maxsize,  # an argument that asks for more than there can be
    "SystemExit": lambda: sys.exit(2),
    "OddError": unspeakable,
}
AROUND: dict[str, Any] = {
    "ConnectionError": lambda: (_ for _ in ()).throw(ConnectionError("refused")),
    "disk full": lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    "chained": chained,
    "grouped": grouped,
    "explicit": lambda: (_ for _ in ()).throw(EnvironmentFailedError("the shop burned down")),
    "import": lambda: __import__("no_such_package"),
}


class Shop(ToolEnvironment):
    """Sell an apple."""

    name = "shop"

    def start(self) -> Observation:
        return Observation.say("Sell an apple.")

    @tool
    def sell(self, item: str) -> str:
        """Sells an item."""
        self.end(success=item == "apple")
        return "Sold."

    @tool
    def do(self, what: str) -> Any:
        """Does something."""
        return {**CAUSED, **AROUND}[what]()

    @tool
    async def later(self, what: str) -> Any:
        """Does something later."""
        await asyncio.sleep(0)
        return {**CAUSED, **AROUND}[what]()

    @tool
    def returns(self, what: str, count: int = 1) -> Any:
        """Returns something."""
        cycle: list[Any] = []
        cycle.append(cycle)

        async def numbers() -> AsyncIterator[int]:
            yield 1

        made = {
            "text": "x" * count, "list": ["x"] * count, "cycle": cycle, "half": "\ud800", "bytes": b"\xff\xfe",
            "async": numbers(), "nan": float("nan"), "numbers": (n for n in range(3)), "odd": object,
        }  # fmt: skip
        return made[what]

    def answer(self, text: str) -> Observation:
        return Observation.end(success=int(text) == 5)


class Calling(Shop):
    def expert(self) -> str:  # type: ignore[override]
        return self.call("do", what="KeyError")


@pytest.fixture(autouse=True)
def _nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_logged", set())


def said(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(name=name, arguments=arguments)])


def stepped(*replies: Message | str, timeout_s: float = 60.0) -> list[Observation]:
    return playing.played(Shop, Task(id="t"), *replies, timeout_s=timeout_s)[1:]


@pytest.mark.parametrize("name", CAUSED)
@pytest.mark.parametrize("method", ["do", "later"])
def test_what_arguments_make_a_tool_raise_is_told_to_the_agent_and_the_episode_continues(method: str, name: str):
    # Python turns StopIteration into RuntimeError inside async def.
    shown = "RuntimeError" if (method, name) == ("later", "StopIteration") else name
    first, second = stepped(said(method, what=name), said("sell", item="apple"))
    assert first.error == "tool_raised" and not first.done
    assert first.messages[0].content.startswith(f"Error: {method} raised {shown}")
    [raised] = raised_in(first.info)
    assert raised.place.startswith(f"{method} raised {shown} (") and "test_tool_failures.py:" in raised.place
    assert second.success and second.error is None and raised_in(second.info) == []


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("method", ["do", "later"])
def test_what_fails_around_a_tool_stays_the_environments_failure(method: str, name: str):
    with pytest.raises(EnvironmentFailedError):
        stepped(said(method, what=name))


def test_an_answer_that_raises_is_the_agents_mistake_too():
    wrong, right = stepped("five", "5")
    assert wrong.error == "tool_raised" and "invalid literal for int()" in wrong.text and not wrong.done
    assert right.success


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("text", "its result has 6,000,000 characters; at most"),
        ("list", "its result has 24,000,001 characters; at most"),
        ("cycle", "Circular reference"),
        ("bytes", "invalid utf-8"),
        ("async", "the tool returned an async generator; it must return its result"),
    ],
)
def test_a_result_that_cannot_be_shown_is_an_error_and_not_a_lost_episode(what: str, problem: str):
    [observation] = stepped(said("returns", what=what, count=6_000_000))
    assert observation.error == "tool_raised" and problem in observation.text and len(observation.text) < 1000


def test_a_message_of_any_length_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CAUSED, "long", lambda: (_ for _ in ()).throw(ValueError("x\ud800" * 1_000_000)))
    [observation] = stepped(said("do", what="long"))
    assert len(observation.text) < 600 and observation.text.endswith("… (2,000,000 characters)")


def test_an_exception_class_that_the_agent_named_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    numbers = iter(range(1000))

    def define() -> None:
        raise type(f"E{next(numbers)}" + "x" * 1_000_000, (Exception,), {})()

    monkeypatch.setitem(CAUSED, "define", define)
    calls = [ToolCall(name="do", arguments={"what": "define"})] * 100
    first, second = stepped(*[Message(role="assistant", tool_calls=calls)] * 2)
    assert len(first.text) < 20_000 and all(len(one.place) < 300 for one in raised_in(first.info)) and not second.done
    assert len(caplog.records) == 100


def test_a_blocked_tool_is_ended_and_not_taken_for_an_exit(monkeypatch: pytest.MonkeyPatch):
    rounds = 0

    def block() -> None:
        nonlocal rounds
        rounds += 1
        while True:
            time.sleep(0.01)

    monkeypatch.setitem(CAUSED, "block", block)
    blocking = ToolCall(name="do", arguments={"what": "block"})
    calls = [ToolCall(name="returns", arguments={"what": "text"}), blocking, blocking]
    [ended] = stepped(Message(role="assistant", tool_calls=calls), timeout_s=1)
    assert (ended.truncated, ended.success, ended.stop) == (True, False, "tool_timeout"), "kept, and not a success"
    assert [message.content for message in ended.messages] == ["x", "Error: do did not return within 1 s."]
    time.sleep(0.3)
    assert rounds == 1, "the next call must not run in the abandoned thread"


def collected(script: Script) -> tuple[Any, list[Trajectory]]:
    kept: list[Trajectory] = []
    tasks = [Task(id=f"t{number}") for number in range(4)]
    limits = LimitsConfig(max_repeats=0)
    played = collect(
        LocalRunner.of(Shop, script, limits), attempts(tasks, 1, 0), lambda one, _: kept.append(one), retries=2
    )
    return asyncio.run(played), kept


def test_a_model_cannot_leave_the_statistics_by_raising(caplog: pytest.LogCaptureFixture):
    """Every episode counts as a failure, and the author's line is logged once."""
    reply = tool_calls.call_text(ToolCall(name="do", arguments={"what": "KeyError"}))
    with caplog.at_level(logging.WARNING):
        tally, kept = collected(Script([reply]))
    assert (tally.episodes, tally.successes, tally.lost, tally.faults) == (4, 0, {}, {})
    assert tally.to_json()["success_rate"] == 0.0 and tally.errors == {"tool_raised": 20}
    [trajectory, *_] = kept
    [(place, count)] = trajectory.info["tools_raised"].items()  # type: ignore[union-attr]
    assert place.startswith("do raised KeyError (") and count == 5 and trajectory.stop == "tool_raised"
    assert caplog.text.count("do raised KeyError: 'missing' (") == 1 and "test_tool_failures.py" in caplog.text


def test_env_check_reports_a_tool_that_raises_for_the_expert():
    report = asyncio.run(check(Calling, None, [Task(id="t")]))
    found = "\n".join(report.problems)
    assert "do raised KeyError: 'missing'" in found and "test_tool_failures.py" in found
    assert "answer raised ValueError" in found, "nonsense reaches answer"
