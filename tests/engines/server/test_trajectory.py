"""A session as a trajectory: the longest chain is the conversation, the rest are turns with prompts of their own."""

import asyncio
from typing import Any

import pytest

from bough.data import bough as own_format
from bough.engines.server.chat import ChatRequest, RefusedError
from bough.engines.server.session import Session
from bough.engines.server.store import SessionOutcome, read_outcome, trajectory_of
from bough.types import Message, Task, Trajectory
from tests.engines.server.fake import TOOL, FakeEngine
from tests.engines.server.test_session import ask, session_on


def played(*requests: Any) -> Session:
    """A session of these requests, one after the other; `{n}` in a text is the n-th reply."""

    async def play() -> Session:
        session = session_on(FakeEngine())
        for request in requests:
            contents = [text.format(*[""], *[f"reply {n}" for n in range(1, 10)]) for text in request]
            await session.answer(ask(*contents))
        return session

    return asyncio.run(play())


def record(session: Session, **outcome: Any) -> Trajectory:
    return trajectory_of(session, SessionOutcome(**outcome), agent="fake")


def texts(messages: list[Message] | None) -> list[str] | None:
    return None if messages is None else [message.content for message in messages]


def test_a_conversation_is_a_start_and_its_turns():
    trajectory = record(played(["one"], ["one", "{1}", "two"]), success=True, rewards={"outcome": 0.7})
    assert texts(trajectory.messages) == ["one", "reply 1", "two", "reply 2"]
    assert [turn.prompt for turn in trajectory.turns] == [None, None]
    assert (trajectory.success, trajectory.rewards, trajectory.stop) == (True, {"outcome": 0.7}, "done")
    assert trajectory.info["agent"] == "fake" and trajectory.info["completion_tokens"] == 14


LEFT, RIGHT = ["one", "{1}", "left"], ["one", "{1}", "right"]


@pytest.mark.parametrize(
    ("requests", "conversation", "prompts"),
    [
        ([["one"], ["aside"], ["one", "{1}", "two"]], ["one", "reply 1", "two", "reply 3"], [None, ["aside"], None]),
        ([["title"], ["one"], ["one", "{2}", "two"]], ["one", "reply 2", "two", "reply 3"], [["title"], None, None]),
        (
            [["one"], LEFT, RIGHT, [*RIGHT, "{3}", "on"]],
            ["one", "reply 1", "right", "reply 3", "on", "reply 4"],
            [None, ["one", "reply 1", "left"], None, None],
        ),
        ([["one"], LEFT, RIGHT], ["one", "reply 1", "left", "reply 2"], [None, None, ["one", "reply 1", "right"]]),
    ],
    ids=["a sub-agent", "one that began later", "the longer branch", "the first of equal branches"],
)
def test_the_longest_chain_is_the_conversation(requests: Any, conversation: list[str], prompts: Any):
    trajectory = record(played(*requests))
    assert texts(trajectory.messages) == conversation
    assert [texts(turn.prompt) for turn in trajectory.turns] == prompts


def test_every_call_keeps_its_exact_tokens_through_the_file_format():
    session = played(["one"], ["aside"], ["one", "{1}", "two"], ["aside", "{2}", "more"])
    trajectory = record(session)
    assert own_format.read(own_format.write(trajectory)) == trajectory
    assert [turn.call for turn in trajectory.turns] == [call.call for call in session.calls]


def test_sessions_that_start_alike_are_attempts_at_one_task():
    one, same, other = (record(played([text])) for text in ("one", "one", "two"))
    assert one.task == same.task != other.task
    assert record(played(["one"]), task=Task(id="mine")).task.id == "mine"


def test_tools_of_a_branch_are_kept_where_they_differ():
    async def play() -> Session:
        session = session_on(FakeEngine())
        await session.answer(ask("one"))
        await session.answer(ChatRequest([Message(role="user", content="one")], tools=[TOOL]))
        return session

    trajectory = record(asyncio.run(play()))
    assert trajectory.tools == [] and [turn.tools for turn in trajectory.turns] == [None, [TOOL]]


def test_what_a_client_says_at_the_end_is_read():
    outcome = read_outcome({"success": True, "reward": 0.7, "task": {"id": "t", "data": {"x": 1}}})
    assert outcome == SessionOutcome(True, {"outcome": 0.7}, task=Task(id="t", data={"x": 1}))
    assert read_outcome({"success": False, "task": "t"}).rewards == {"outcome": 0.0}
    assert read_outcome({}) == SessionOutcome(None, {"outcome": None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", 1), ("success", "yes"), ("reward", True), ("reward", "1"), ("reward", float("inf")),
        pytest.param("reward", 10**400, id="huge"), ("task", 7), ("won", 1),
    ],
)  # fmt: skip
def test_a_wrong_outcome_is_refused(name: str, value: Any):
    with pytest.raises(RefusedError, match=name) as caught:
        read_outcome({name: value})
    assert caught.value.status == 400
