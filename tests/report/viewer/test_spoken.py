import pytest

from bough.report.viewer.records import MAX_PARSED, label, parts
from bough.types import Message, ToolCall, Turn

CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "a = 1\\nprint(a)"}}\n</tool_call>'
DECODED = {"kind": "call", "name": "python", "arguments": {"code": "a = 1\nprint(a)"}}


def said(content: str, **more: object) -> Message:
    return Message.model_validate({"role": "assistant", "content": content, **more})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("THOUGHT: I look.\nACTION: go to shelf 1", [("thought", "I look."), ("action", "go to shelf 1")]),
        ("Think: I look.\nAct: go", [("thought", "I look."), ("action", "go")]),
        ("ACTION: go", [("action", "go")]),
        ("THOUGHT: I never act.", [("reply", "THOUGHT: I never act.")]),
        ("<think>Hm.</think>\nACTION: go", [("thought", "Hm."), ("action", "go")]),
        ("<think>without an end", [("thought", "without an end")]),
        ("<think>a</think>b<think>c</think>\nACTION: go", [("thought", "a</think>b<think>c"), ("action", "go")]),
        ("<think>" + "</think><think>" * 9000 + "</think>Go", [("thought", "</think><think>" * 9000), ("reply", "Go")]),
        ("It is 4.", [("reply", "It is 4.")]),
        ("  ", []),
        ('I try.\n<tool_call>{"name": ', [("thought", "I try."), ("broken call", '<tool_call>{"name":')]),
    ],
)
def test_a_reply_is_taken_apart(content: str, expected: list[tuple[str, str]]):
    assert [(part["kind"], part["text"]) for part in parts(said(content))] == expected


def test_calls_in_tags_and_structured_calls_are_decoded_the_same_way():
    written = parts(said(f"I compute.\n{CALL}"))
    structured = parts(said("I compute.", tool_calls=[ToolCall(name="python", arguments=DECODED["arguments"])]))
    assert written == [{"kind": "thought", "text": "I compute."}, DECODED]
    assert structured == [{"kind": "reply", "text": "I compute."}, DECODED]
    assert [part["kind"] for part in parts(said(CALL + CALL, reasoning="Hm."))] == ["thought", "call", "call"]


def test_a_reply_that_is_nothing_but_its_action_is_an_action():
    assert parts(said(" click('3') "), "click('3')") == [{"kind": "action", "text": "click('3')"}]


def test_the_label_of_a_turn_is_one_line_without_tags_or_json():
    assert label(Turn(reply=said(f"I compute.\n{CALL}"), action=CALL)) == 'python(code="a = 1 print(a)")'
    two = said("", tool_calls=[ToolCall(name="f", arguments={"x": 1, "y": [2]}), ToolCall(name="g")])
    assert label(Turn(reply=two)) == "f(x=1, y=[2]); g()"
    assert label(Turn(reply=said("THOUGHT: a\nACTION: b"), action="b")) == "b"
    assert label(Turn(reply=said("no action\nat all"))) == "no action at all"
    assert len(label(Turn(reply=said("x" * 5000)))) == 600


def test_very_long_replies_are_not_taken_apart():
    for content in (CALL + "x" * MAX_PARSED, "THOUGHT:" + "\n" * MAX_PARSED + "x"):
        assert [part["kind"] for part in parts(said(content))] == ["reply"]
    assert len(parts(said("THOUGHT:" + "\n" * (MAX_PARSED - 100) + "x"))) == 1
