from bough.engines.server.chat import reply_key, shown_reply
from bough.types import Message, ToolCall
from tests.engines.server.fake import LOOK


def said(content: str) -> Message:
    return Message(role="assistant", content=content)


def test_a_call_that_cannot_be_read_stays_text():
    broken = "<tool_call>{not json}</tool_call>"
    assert shown_reply(said(broken), name="s", tool_names=["look"]) == said(broken)


def test_thinking_stays_in_the_content_and_makes_no_calls():
    text = f"<think>{LOOK}</think>\n{LOOK}"
    shown = shown_reply(said(text), name="s", tool_names=["look"])
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
