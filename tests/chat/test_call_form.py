import pytest

from bough.chat.call_form import CallForm, form_of
from bough.types import ToolCall

CALL = ToolCall(name="look", arguments={"at": "shelf"}, id="123456789")
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
    assert form_of(example, CALL) == form
    if form is not None:
        around, [read] = form.split(example)
        assert around == "" and (read.name, read.arguments) == (CALL.name, CALL.arguments)


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
