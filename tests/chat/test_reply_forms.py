import pytest

from bough.chat import hermes
from bough.chat.forms import MalformedError
from bough.chat.reply import Reply
from bough.types import Message, ToolCall

CALL = ToolCall(name="add", arguments={"a": 1}, id="call_7")


def test_a_reply_is_text():
    assert Reply.of("Hello.") == "Hello." and Reply.of("Hello.").tool_calls == ()


def test_calls_that_came_as_data_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hermes, "parse", lambda text: pytest.fail("the text was parsed"))
    reply = Reply.of(Message(role="assistant", content="I add.", tool_calls=[CALL]))
    assert reply.tool_calls == (CALL,) and reply.parsed.thought == "I add."
    assert reply == f"I add.\n{hermes.call_text(CALL)}", "a text environment reads the same"


def test_calls_that_came_as_text_are_parsed():
    assert Reply.of(hermes.call_text(CALL)).tool_calls == (CALL.model_copy(update={"id": None}),)
    with pytest.raises(MalformedError):
        _ = Reply.of("<tool_call>{").tool_calls


def test_a_reply_stays_what_it_is():
    reply = Reply.of(Message(role="assistant", tool_calls=[CALL]))
    assert Reply.of(reply) is reply


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], "\ud800", {"\ud800": 1}])
def test_data_that_is_not_json_is_malformed_as_it_is_in_text(value: object):
    call = ToolCall.model_validate({"name": "add", "arguments": {"a": value}})
    with pytest.raises(MalformedError, match="not JSON"):
        _ = Reply.of(Message(role="assistant", tool_calls=[call])).tool_calls


def test_calls_as_data_are_limited_in_number_as_in_text():
    assert len(Reply.of(Message(role="assistant", tool_calls=[CALL] * 100)).tool_calls) == 100
    with pytest.raises(MalformedError, match="more than 100 tool calls"):
        _ = Reply.of(Message(role="assistant", tool_calls=[CALL] * 101)).tool_calls


def test_a_call_that_json_cannot_carry_is_malformed_and_not_an_error_of_the_toolkit():
    message = Message(role="assistant", content="I add.", tool_calls=[ToolCall(name="add", arguments={"n": 10**5000})])
    reply = Reply.of(message)
    assert reply == "I add."
    with pytest.raises(MalformedError, match="The tool call is not JSON"):
        _ = reply.parsed
