"""Which call a request continues, and with which chat."""

import asyncio
from typing import Any

import pytest

from bough.engines.base import ContextFullError, EngineError
from bough.engines.server.chat import ChatRequest, RefusedError, reply_key, shown_reply
from bough.engines.server.session import MAX_IDLE_CHATS, Session, SessionConfig
from bough.types import Message, ToolCall
from tests.engines.server.fake import LOOK, TOOL, FakeEngine


def session_on(engine: FakeEngine, **more: Any) -> Session:
    config = SessionConfig(lambda number: engine.open(f"s/{number}", seed=0), engine.sampling, **more)
    return Session("s", config)


def ask(*contents: str, **more: Any) -> ChatRequest:
    """A conversation in which user and assistant speak in turn."""
    roles = ("user", "assistant")
    messages = [Message(role=roles[i % 2], content=text) for i, text in enumerate(contents)]  # type: ignore[arg-type]
    return ChatRequest(messages, **more)


async def said(session: Session, request: ChatRequest) -> str:
    _, shown = await session.answer(request)
    return shown.content


def parents(session: Session) -> list[int | None]:
    return [call.parent for call in session.calls]


async def test_a_conversation_that_grows_is_one_chain_on_one_chat():
    engine = FakeEngine()
    session = session_on(engine)
    first = await said(session, ask("one"))
    second = await said(session, ask("one", first, "two"))
    await said(session, ask("one", first, "two", second, "three"))
    assert parents(session) == [None, 0, 1]
    assert [[m.content for m in call.messages] for call in session.calls] == [["one"], ["two"], ["three"]]
    assert engine.opened == ["s/0"] and engine.closed == []


async def test_a_rewritten_history_starts_a_branch_with_all_its_messages():
    session = session_on(engine := FakeEngine())
    await said(session, ask("one"))
    await said(session, ask("one", "a summary", "two"))
    assert parents(session) == [None, None]
    assert [m.content for m in session.calls[1].messages] == ["one", "a summary", "two"]
    assert engine.opened == ["s/0", "s/1"]


async def test_a_request_that_adds_nothing_to_a_conversation_is_a_branch():
    session = session_on(FakeEngine())
    first = await said(session, ask("one"))
    await said(session, ask("one", first))
    assert parents(session) == [None, None]
    assert [m.content for m in session.calls[1].messages] == ["one", "reply 1"]


async def test_two_ways_on_from_one_call_have_one_parent_and_two_chats():
    session = session_on(engine := FakeEngine())
    first = await said(session, ask("one"))
    await asyncio.gather(
        session.answer(ask("one", first, "left")), session.answer(ask("one", first, "right")),
    )  # fmt: skip
    assert parents(session) == [None, 0, 0]
    assert [asked["chat"] for asked in engine.asked] == ["s/0", "s/0", "s/1"]


def test_a_seed_depends_on_what_is_asked_and_how_often_but_not_on_what_came_between():
    async def seeds(*questions: str) -> dict[str, list[int]]:
        session = session_on(engine := FakeEngine())
        for question in questions:
            await session.answer(ask(question))
        found: dict[str, list[int]] = {}
        for asked in engine.asked:
            found.setdefault(asked["messages"][0].content, []).append(asked["seed"])
        return found

    some, others = asyncio.run(seeds("a", "b", "a")), asyncio.run(seeds("b", "c", "a", "a"))
    assert some["a"] == others["a"] and some["b"] == others["b"]
    assert len(set(some["a"])) == 2, "the same question again is another draw"


async def test_a_reply_with_tool_calls_goes_back_to_the_model_as_it_wrote_it():
    session = session_on(engine := FakeEngine(say=lambda _: f"Well.\n{LOOK}"))
    _, shown = await session.answer(ask("one", tools=[TOOL]))
    assert shown.content == "Well." and shown.tool_calls[0].name == "look"
    result = Message(role="tool", content="a mug", tool_call_id=shown.tool_calls[0].id)
    await session.answer(ChatRequest([*ask("one").messages, shown, result], tools=[TOOL]))
    assert [m.content for m in engine.asked[1]["messages"]] == ["one", f"Well.\n{LOOK}", "a mug"]
    assert parents(session) == [None, 0]


async def test_the_ids_of_tool_calls_do_not_tell_the_session_s_name():
    """They are part of later prompts; a model that knows its address could use the endpoint itself."""

    session = session_on(FakeEngine(say=lambda _: LOOK))
    session.name = "5ec7e7"
    ids = [(await session.answer(ask("one", tools=[TOOL])))[1].tool_calls[0].id for _ in range(2)]
    assert len(set(ids)) == 2 and not any(session.name in str(one) for one in ids)


async def test_a_stop_text_is_cut_off_and_stays_away_from_the_history():
    session = session_on(engine := FakeEngine(say=lambda _: "an answer END"))
    reply = await said(session, ask("one", sampling={"stop": ["END"]}))
    assert reply == "an answer "
    await said(session, ask("one", reply, "two"))
    assert engine.asked[1]["messages"][1].content == "an answer "
    call = session.calls[0].call
    assert call is not None and call.text == "an answer END", "the tokens are what was sampled"


async def test_a_closed_session_cancels_what_is_in_flight_and_refuses_the_rest(monkeypatch: pytest.MonkeyPatch):
    session = session_on(engine := FakeEngine(gate=asyncio.Event()))
    waiting = asyncio.create_task(session.answer(ask("one")))
    while not engine.asked:
        await asyncio.sleep(0)
    monkeypatch.setattr("bough.engines.server.session.MAX_IN_FLIGHT", 1)
    with pytest.raises(RefusedError, match="session s has 1 requests in flight"):
        await session.answer(ask("two"))
    session.close("it has ended")
    for answer in (waiting, session.answer(ask("two"))):
        with pytest.raises(RefusedError, match="session s is closed") as caught:
            await answer
        assert caught.value.status == 409
    assert engine.cancelled == 1 and session.calls == [] and session.in_flight == 0
    assert engine.closed == ["s/0"]


async def test_more_replies_than_allowed_are_refused_and_requests_in_flight_count():
    session = session_on(FakeEngine(), max_calls=2)
    await session.answer(ask("one"))
    answers = [session.answer(ask("two")), session.answer(ask("three"))]
    second, third = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(second, tuple) and isinstance(third, RefusedError) and "at most 2 replies" in str(third)
    assert session.refused == "max_turns" and len(session.calls) == 2


@pytest.mark.parametrize("error", [ContextFullError("too long"), EngineError("gone")])
async def test_why_a_model_could_not_answer_is_remembered(error: Exception):
    def fail(_: Any) -> str:
        raise error

    session = session_on(FakeEngine(say=fail))
    with pytest.raises(type(error)):
        await session.answer(ask("one"))
    full = isinstance(error, ContextFullError)
    assert (session.refused, session.failure) == (("context_full", None) if full else (None, error))


async def test_few_chats_are_kept_for_later():
    session = session_on(engine := FakeEngine())
    for number in range(MAX_IDLE_CHATS + 3):
        await session.answer(ask(f"question {number}"))
    assert engine.closed == ["s/0", "s/1", "s/2"]


def written(content: str) -> Message:
    return Message(role="assistant", content=content)


def test_a_call_that_cannot_be_read_stays_text():
    broken = "<tool_call>{not json}</tool_call>"
    assert shown_reply(written(broken), name="s", tool_names=["look"]) == written(broken)


def test_thinking_stays_in_the_content_and_makes_no_calls():
    text = f"<think>{LOOK}</think>\n{LOOK}"
    shown = shown_reply(written(text), name="s", tool_names=["look"])
    assert shown.content == f"<think>{LOOK}</think>" and len(shown.tool_calls) == 1


def test_calls_that_a_server_delivered_as_data_are_passed_on():
    reply = Message(role="assistant", content="x", tool_calls=[ToolCall(name="f", id="theirs")])
    assert shown_reply(reply, name="s", tool_names=["look"]) == reply


def test_a_reply_is_recognised_whatever_a_client_does_to_ids_and_order():
    call = ToolCall(name="f", arguments={"a": 1, "b": 2}, id="x")
    other = ToolCall(name="f", arguments={"b": 2, "a": 1})
    one = Message(role="assistant", content=" hi\n", tool_calls=[call])
    assert reply_key(one) == reply_key(Message(role="assistant", content="hi", tool_calls=[other]))
    assert reply_key(one) != reply_key(Message(role="assistant", content="hi"))
