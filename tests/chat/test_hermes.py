import json

import pytest

from bough.chat import hermes
from bough.chat.forms import MalformedError
from bough.types import Message, ToolCall

CALL = ToolCall(name="code_interpreter", arguments={"code": "print('é')\n1 + 1"})


def test_a_call_is_read_with_the_text_around_it_as_thought():
    said = hermes.parse('I compute.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\nThen I answer.')
    assert said.calls == (ToolCall(name="f", arguments={"x": 1}),)
    assert said.thought == "I compute.\n\nThen I answer."
    assert said.action == '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def test_several_calls_come_in_their_order():
    said = hermes.parse("".join(hermes.call_text(ToolCall(name=name)) for name in "abc"))
    assert [call.name for call in said.calls] == ["a", "b", "c"] and said.thought == ""


def test_what_is_written_reads_back():
    reply = hermes.write(hermes.call_text(CALL), "I compute.")
    said = hermes.parse(reply)
    assert said.calls == (CALL,) and said.thought == "I compute."
    assert hermes.write(said.action, said.thought) == reply
    assert "é" in reply


def test_a_reply_without_a_call_is_an_answer():
    said = hermes.parse("  The answer is \\boxed{4}. ")
    assert (said.action, said.calls, said.thought) == ("The answer is \\boxed{4}.", (), "")
    assert hermes.write(said.action) == said.action


def test_thinking_aloud_calls_nothing():
    said = hermes.parse("<think>Shall I write <tool_call>? No.</think>\nIt is 4.")
    assert (said.action, said.calls) == ("It is 4.", ()) and said.thought == "Shall I write <tool_call>? No."
    assert hermes.parse("Hm. <think>Maybe <tool_call>{").calls == ()
    assert hermes.parse(f"<think>Now.</think>{hermes.call_text(CALL)}").calls == (CALL,)


def test_lines_may_break_inside_a_string_and_arguments_may_be_text():
    said = hermes.parse('<tool_call>{"name": "f", "arguments": {"code": "a\nb"}}</tool_call>')
    assert said.calls[0].arguments == {"code": "a\nb"}
    text = json.dumps({"name": "f", "arguments": json.dumps({"x": 1})})
    assert hermes.parse(f"<tool_call>{text}</tool_call>").calls[0].arguments == {"x": 1}


def test_a_call_may_go_without_arguments():
    assert hermes.parse('<tool_call>{"name": "f"}</tool_call>').calls == (ToolCall(name="f"),)


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        ('<tool_call>{"name": "f", "arguments": {', "not closed with </tool_call>"),
        ('{"name": "f"}</tool_call>', "closes no tool call"),
        ('<tool_call>{"name": "f",}</tool_call>', "not JSON: "),
        ("<tool_call>print(1)</tool_call>", "not JSON: Expecting value: line 1 column 1"),
        ("<tool_call></tool_call>", "not JSON"),
        ("<tool_call>[1]</tool_call>", "not an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": ""}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', 'has "parameters"'),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "is not an object"),
        ('<tool_call>{"name": "f", "arguments": "x = 1"}</tool_call>', "not JSON"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "not JSON: Exceeds the limit"),
        ('<tool_call>{"name": "f", "arguments": "' + "9" * 5000 + '"}</tool_call>', "not JSON: Exceeds the limit"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "not JSON: "),
        ('<tool_call>{"name": "f", "arguments": {"x": [1e999]}}</tool_call>', "not JSON: "),
        ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "half a surrogate pair"),
        ('<tool_call>{"name": "\\udfff"}</tool_call>', "half a surrogate pair"),
        ('<tool_call>{"name": "f", "arguments": ' + '{"x": ' * 100_000 + "</tool_call>", "not JSON"),
    ],
)
def test_a_broken_call_is_told_what_is_wrong_and_how_it_is_done(reply: str, wrong: str):
    with pytest.raises(MalformedError) as error:
        hermes.parse(reply)
    assert wrong in str(error.value) and str(error.value).endswith(hermes.PROMPT)


def test_a_message_with_calls_is_written_as_text():
    reply = Message(role="assistant", content="I compute.", tool_calls=[CALL])
    assert hermes.parse(hermes.reply_text(reply)).calls == (CALL,)
    assert hermes.reply_text(Message(role="assistant", content="4")) == "4"
