import json

import pytest

from bough.chat import tool_calls
from bough.chat.tool_calls import (
    MAX_CALLS,
    PROMPT,
    CallForm,
    MalformedError,
    Reply,
    call_text,
    form_of,
    parse,
    read_calls,
    reply_text,
    write,
)
from bough.types import Message, ToolCall

CALL = ToolCall(name="code_interpreter", arguments={"code": "print('é')\n1 + 1"})


def test_a_call_is_read_with_the_text_around_it_as_thought():
    said = parse('I compute.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\nThen I answer.')
    assert said.calls == (ToolCall(name="f", arguments={"x": 1}),)
    assert said.thought == "I compute.\n\nThen I answer."
    assert said.action == '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def test_what_is_written_reads_back():
    reply = write(call_text(CALL), "I compute.")
    said = parse(reply)
    assert said.calls == (CALL,) and said.thought == "I compute."
    assert write(said.action, said.thought) == reply
    assert "é" in reply
    message = Message(role="assistant", content="I compute.", tool_calls=[CALL])
    assert parse(reply_text(message)).calls == (CALL,)
    said = parse("  The answer is \\boxed{4}. ")
    assert (said.action, said.calls, said.thought) == ("The answer is \\boxed{4}.", (), "")


def test_thinking_aloud_calls_nothing():
    said = parse("<think>Shall I write <tool_call>? No.</think>\nIt is 4.")
    assert (said.action, said.calls) == ("It is 4.", ()) and said.thought == "Shall I write <tool_call>? No."
    assert parse("Hm. <think>Maybe <tool_call>{").calls == ()
    assert parse(f"<think>Now.</think>{call_text(CALL)}").calls == (CALL,)


def test_lines_may_break_inside_a_string_and_arguments_may_be_text():
    said = parse('<tool_call>{"name": "f", "arguments": {"code": "a\nb"}}</tool_call>')
    assert said.calls[0].arguments == {"code": "a\nb"}
    text = json.dumps({"name": "f", "arguments": json.dumps({"x": 1})})
    assert parse(f"<tool_call>{text}</tool_call>").calls[0].arguments == {"x": 1}


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        ('<tool_call>{"name": "f", "arguments": {', "not closed with </tool_call>"),
        ('{"name": "f"}</tool_call>', "closes no tool call"),
        ('<tool_call>{"name": "f",}</tool_call>', "not JSON: "),
        ("<tool_call>print(1)</tool_call>", "not JSON: Expecting value: line 1 column 1"),
        ("<tool_call></tool_call>", "not JSON"),
        ("<tool_call>[1]</tool_call>", "not an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'with a "name"'),
        ('<tool_call>{"name": ""}</tool_call>', 'with a "name"'),
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
        parse(reply)
    assert wrong in str(error.value) and str(error.value).endswith(PROMPT)


def test_calls_are_limited_in_number():
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert parse(call * MAX_CALLS).calls == (ToolCall(name="f"),) * MAX_CALLS
    as_data = Reply.of(Message(role="assistant", tool_calls=[ADD] * (MAX_CALLS + 1)))
    for read in (lambda: parse(call * (MAX_CALLS + 1)), lambda: as_data.tool_calls):
        with pytest.raises(MalformedError, match="more than 100 tool calls"):
            read()


ADD = ToolCall(name="add", arguments={"a": 1}, id="call_7")


def test_calls_that_came_as_data_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tool_calls, "parse", lambda text: pytest.fail("the text was parsed"))
    reply = Reply.of(Message(role="assistant", content="I add.", tool_calls=[ADD]))
    assert reply.tool_calls == (ADD,) and reply.parsed.thought == "I add."
    assert reply == f"I add.\n{call_text(ADD)}", "a text environment reads the same"
    assert Reply.of(reply) is reply


def test_calls_that_came_as_text_are_parsed():
    assert Reply.of("Hello.") == "Hello." and Reply.of("Hello.").tool_calls == ()
    assert Reply.of(call_text(ADD)).tool_calls == (ADD.model_copy(update={"id": None}),)
    with pytest.raises(MalformedError):
        _ = Reply.of("<tool_call>{").tool_calls


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], "\ud800", {"\ud800": 1}])
def test_data_that_is_not_json_is_malformed_as_it_is_in_text(value: object):
    call = ToolCall.model_validate({"name": "add", "arguments": {"a": value}})
    with pytest.raises(MalformedError, match="not JSON"):
        _ = Reply.of(Message(role="assistant", tool_calls=[call])).tool_calls


def test_a_call_that_json_cannot_carry_is_malformed_and_not_an_error_of_the_toolkit():
    message = Message(role="assistant", content="I add.", tool_calls=[ToolCall(name="add", arguments={"n": 10**5000})])
    reply = Reply.of(message)
    assert reply == "I add."
    with pytest.raises(MalformedError, match="The tool call is not JSON"):
        _ = reply.parsed


LOOK = ToolCall(name="look", arguments={"at": "shelf"}, id="123456789")
LLAMA = CallForm("", "", "name", "parameters")
MISTRAL = CallForm("[TOOL_CALLS]", "")
LATER = CallForm("[TOOL_CALLS]", "", separator=r"\[CALL_ID\][\w-]+\[ARGS\]")
PHI = CallForm("<|tool_call|>", "<|/tool_call|>")


@pytest.mark.parametrize(
    ("example", "form"),
    [
        ('<tool_call>\n{"name": "look", "arguments": {"at": "shelf"}}\n</tool_call>', None),
        ('{"name": "look", "parameters": {"at": "shelf"}}', LLAMA),
        ('[TOOL_CALLS] [{"name": "look", "arguments": {"at": "shelf"}, "id": "123456789"}]', MISTRAL),
        ('[TOOL_CALLS]look[CALL_ID]123456789[ARGS]{"at": "shelf"}', LATER),
        ('<|tool_call|>[{"name": "look", "arguments": {"at": "shelf"}}]<|/tool_call|>', PHI),
        ("<function=look>\n<parameter=at>\nshelf\n</parameter>\n</function>", None),
        ('look {"at": "shelf"}', None),
        ("no call", None),
    ],
)
def test_a_form_is_found_in_an_example(example: str, form: CallForm | None):
    assert form_of(example, LOOK) == form
    if form is not None:
        around, [read] = form.split(example)
        assert around == "" and (read.name, read.arguments) == (LOOK.name, LOOK.arguments)


@pytest.mark.parametrize(
    ("form", "text", "around", "names"),
    [
        (LLAMA, '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}', "", ["a"]),
        (LLAMA, '{"name": "a", "parameters": {}}; {"name": "b", "parameters": "{}"}', "", ["a", "b"]),
        (LLAMA, '<think>Hm.</think>\n{"name": "a", "parameters": {}}', "<think>Hm.</think>", ["a"]),
        (
            MISTRAL,
            'So: [TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]',
            "So:",
            ["a", "b"],
        ),
        (LATER, "[TOOL_CALLS]a[CALL_ID]x[ARGS]{}[TOOL_CALLS]b[CALL_ID]y[ARGS]{}", "", ["a", "b"]),
        (PHI, 'I <|tool_call|>[{"name": "a", "arguments": {}}]<|/tool_call|> go', "I  go", ["a"]),
    ],
)
def test_calls_are_read_and_the_text_around_them_stays(form: CallForm, text: str, around: str, names: list[str]):
    content, calls = form.split(text)
    assert content == around and [call.name for call in calls] == names


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LLAMA, "Plain words."),
        (LLAMA, 'I answer {"name": "a", "parameters": {}}'),
        (LLAMA, '{"name": "Ann", "age": 7}'),
        (LLAMA, '{"name": "a", "parameters": {"x": NaN}}'),
        (LLAMA, '<think>{"name": "a", "parameters": {}}'),
        (LLAMA, '{"name": "a", "parameters": ' + "[" * 100_000),
        (MISTRAL, "[TOOL_CALLS] [{]"),
        (MISTRAL, '[TOOL_CALLS] [{"name": 7, "arguments": {}}]'),
        (MISTRAL, "[TOOL_CALLS] " + "[" + ", ".join(['{"name": "a", "arguments": {}}'] * 101) + "]"),
        (LATER, "[TOOL_CALLS]a{}"),
        (LATER, '[TOOL_CALLS]a[CALL_ID]x[ARGS]"text"'),
    ],
)
def test_what_cannot_be_read_stays_text(form: CallForm, text: str):
    assert form.split(text) == (text, [])


BUY = ToolCall(name="buy", arguments={"item": "apple"})
BOUGHT = '{"name": "buy", "arguments": {"item": "apple"}}'


@pytest.mark.parametrize(
    "reply",
    [
        f"```json\n{BOUGHT}\n```",
        f"I will buy one.\n```json\n{BOUGHT}\n```\nThat should do.",
        f"```\n{BOUGHT}\n```",
        BOUGHT,
        f"[{BOUGHT}]",
        '```json\n{"name": "buy", "parameters": {"item": "apple"}}\n```',
    ],
)
def test_a_call_in_a_block_or_alone_is_read(reply: str):
    assert read_calls(reply, ["buy", "sell"]) == (BUY,)


def test_several_calls_keep_their_order():
    sell = ToolCall(name="sell")
    reply = f'```json\n{BOUGHT}\n{{"name": "sell"}}\n```\nthen\n```json\n{BOUGHT}\n```'
    assert read_calls(reply, ["buy", "sell"]) == (BUY, sell, BUY)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "The answer is 5.",
        f"Call {BOUGHT}",
        '```json\n{"total": 5}\n```',
        '```json\n{"name": "steal", "arguments": {}}\n```',
        '```json\n{"name": "buy", "arguments": [1]}\n```',
        '```json\n{"name": "buy", "arguments": {}, "because": "x"}\n```',
        f"```json\n{BOUGHT[:-1]}\n```",
        '{"name": "buy", "arguments": {"item": NaN}}',
        '{"name": ["buy"]}',
        f"```json\n{BOUGHT}\n```\n```json\nnot JSON\n```",
        "[" * 100_000,
        "```" + " " * 1_000_000,
        "```json" + "\t" * 1_000_000,
        f"[{','.join([BOUGHT] * 101)}]",
        f"```python\n{BOUGHT}\n```",
    ],
)
def test_anything_else_is_not_a_call(reply: str):
    assert read_calls(reply, ["buy", "sell"]) == ()
