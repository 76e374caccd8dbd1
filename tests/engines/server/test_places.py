"""A reply that a client sends back is the one that was recorded at that place of the conversation."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from bough.engines.server.chat import ChatRequest
from bough.engines.server.session import RecordedCall, Session, prompt_of
from bough.engines.server.store import SessionOutcome, Store, read_call, write_call
from bough.types import Message, ToolCall
from tests.engines.server.fake import LOOK, TOOL, FakeEngine, make_recorder, rendered
from tests.engines.server.test_session import ask, session_on

SPACED = LOOK.replace(":", ": ")
FORMS = [LOOK, SPACED, f"Well.\n{LOOK}", f"Well. {SPACED}\n", " ", "\n", "", "done", "done ", "\ndone"]


def engine_saying(*texts: str, **more: Any) -> FakeEngine:
    replies = iter(texts)
    return FakeEngine(say=lambda _: next(replies), **more)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def offered(*messages: Message, **more: Any) -> ChatRequest:
    return ChatRequest(list(messages), tools=[TOOL], **more)


async def shown(session: Session, request: ChatRequest) -> Message:
    _, reply = await session.answer(request)
    return reply


def tokens(call: RecordedCall) -> list[int]:
    assert call.call is not None
    return call.call.prompt_ids + call.call.completion_ids


def check(session: Session) -> None:
    """What a record says of the call that it continues is true."""
    for call in session.calls:
        assert call.call is not None
        if call.parent is None:
            assert not call.rewritten
            continue
        before = tokens(session.calls[call.parent])
        assert call.rewritten is (call.call.prompt_ids[: len(before)] != before)
        prompt = [token % 1000 for token in call.call.prompt_ids]
        assert bytes(prompt).decode() == rendered(prompt_of(session.calls, call)), "the messages are those it was shown"


def replayed(session: Session, engine: FakeEngine) -> Session:
    """The session as the next server reads it."""
    new, before = session_on(engine), None
    for call in session.calls:
        before = read_call(json.loads(json.dumps(write_call(call, before))), before)
        new.add(before)
    return new


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("first", "second"), [(LOOK, SPACED), (" ", "\n"), ("done", "done ")])
async def test_the_same_reply_in_another_form_does_not_replace_an_earlier_one(first: str, second: str, restarts: bool):
    session = session_on(engine := engine_saying(first, second, "end", offset=1000))
    said = [user("one")]
    for words in ("two", "three"):
        reply = await shown(session, offered(*said))
        said += [reply, user(words)]
    session = replayed(session, engine) if restarts else session
    await shown(session, offered(*said))
    assert [m.content for m in engine.asked[-1]["messages"]] == ["one", first, "two", second, "three"]
    assert [call.parent for call in session.calls] == [None, 0, 1]
    assert [call.rewritten for call in session.calls] == [False, False, restarts]
    check(session)


def test_of_two_replies_to_one_prompt_the_one_that_comes_back_is_continued():
    """They look the same to the client except for the ids of their calls."""

    async def play(chosen: int) -> None:
        session = session_on(engine := engine_saying(LOOK, SPACED, *["done"] * 3))
        one, other = [await shown(session, offered(user("one"))) for _ in range(2)]
        ends = [await shown(session, offered(user("one"), reply, user("two"))) for reply in (one, other)]
        assert [call.parent for call in session.calls] == [None, None, 0, 1]
        await shown(session, offered(user("one"), [one, other][chosen], user("two"), ends[chosen], user("three")))
        assert engine.asked[-1]["messages"][1].content == [LOOK, SPACED][chosen]
        assert session.calls[-1].parent == 2 + chosen
        check(session)

    for chosen in (0, 1):
        asyncio.run(play(chosen))


async def test_a_rewritten_history_keeps_the_form_of_the_calls_in_it():
    """As where an agent replaces its first messages by a summary."""

    session = session_on(engine := engine_saying(LOOK, SPACED, "end"))
    first = await shown(session, offered(user("one")))
    second = await shown(session, offered(user("one"), first, user("two")))
    await shown(session, offered(user("a summary"), first, user("between"), second, user("three")))
    said = [m.content for m in engine.asked[-1]["messages"]]
    assert said == ["a summary", LOOK, "between", SPACED, "three"] and session.calls[-1].parent is None


async def test_a_call_that_was_edited_is_not_what_the_model_wrote():
    session = session_on(engine := engine_saying(LOOK, "end", "end"))
    reply = await shown(session, offered(user("one")))
    [call] = reply.tool_calls
    edited = reply.model_copy(update={"tool_calls": [call.model_copy(update={"arguments": {"at": "desk"}})]})
    for start in ("one", "a summary"):
        await shown(session, offered(user(start), edited, user("two")))
        assert engine.asked[-1]["messages"][1] == edited and session.calls[-1].parent is None


async def test_prompts_that_do_not_continue_the_sampled_tokens_are_counted(tmp_path: Path):
    recorder = make_recorder(FakeEngine(offset=1000), Store(tmp_path))
    for question in ("left", "right"):  # the second way on has a chat of its own, which encodes the text
        await recorder.answer("s", ask("one"))
        await recorder.answer("s", ask("one", "reply 1", question))
    session = recorder.session("s")
    assert [call.parent for call in session.calls] == [None, 0, None, 0]
    assert [call.rewritten for call in session.calls] == [False, False, False, True]
    check(session)
    await recorder.close()
    again = make_recorder(FakeEngine(), Store(tmp_path))
    assert [call.rewritten for call in again.session("s").calls] == [False, False, False, True]
    trajectory = await again.end("s", SessionOutcome())
    assert trajectory.info["rewritten_prompts"] == 1
    await again.close()


@pytest.mark.parametrize("seed", range(20))
async def test_what_a_record_continues_is_true_whatever_a_client_does(seed: int):
    """Clients repeat requests, branch, drop ids and white space, rewrite histories; servers restart."""

    draw = random.Random(seed)
    engine = FakeEngine(say=lambda _: draw.choice(FORMS), offset=draw.choice([0, 1000]))
    session = session_on(engine)
    conversations: list[list[Message]] = [[user("one")], [user("one ")]]
    for _ in range(40):
        messages = _changed(draw, draw.choice(conversations))
        _, reply = await session.answer(offered(*messages))
        conversations.append([*messages, reply, user(draw.choice(["two", "two\n", "three"]))])
        if draw.random() < 0.1:
            session = replayed(session, engine)
        check(session)


@pytest.mark.parametrize("seed", range(10))
async def test_a_client_that_changes_nothing_continues_the_very_reply_that_it_got(seed: int):
    draw = random.Random(seed)
    session = session_on(engine := FakeEngine(say=lambda _: draw.choice(FORMS)))
    # Each conversation with the replies in it as the model wrote them.
    conversations: list[tuple[list[Message], list[str]]] = [([user("one")], [])]
    for _ in range(40):
        messages, written = draw.choice(conversations)
        answer, reply = await session.answer(offered(*messages))
        sent = engine.asked[-1]["messages"]
        assert [m.content for m in sent if m.role == "assistant"] == written
        conversations.append(([*messages, reply, user("more")], [*written, answer.message.content]))
    assert all((call.parent is None) is (len(prompt_of(session.calls, call)) == 1) for call in session.calls)
    check(session)


def _changed(draw: random.Random, messages: list[Message]) -> list[Message]:
    kind = draw.choice(["as it is", "as it is", "no ids", "stripped", "nothing new", "summary"])
    if kind == "no ids":
        return [one.model_copy(update={"tool_calls": [_bare(call) for call in one.tool_calls]}) for one in messages]
    if kind == "stripped":
        return [one.model_copy(update={"content": one.content.strip()}) for one in messages]
    if kind == "nothing new" and len(messages) > 1:
        return messages[:-1]
    return [user("a summary"), *messages[1:]] if kind == "summary" else messages


def _bare(call: ToolCall) -> ToolCall:
    return call.model_copy(update={"id": None})
