"""What a stream shows of a reply is a beginning of what a client without a stream gets."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bough.engines.server.chat import ShownText, shown_reply, without_stop
from bough.types import Message
from tests.engines.server.fake import LOOK

BARE = json.dumps({"name": "look", "arguments": {}})
PIECES = [
    "I look.", " ", "\n", LOOK, LOOK[:15], "</tool_call>", "<think>", "</think>", BARE, "{", "[1] ", "```json\n",
    "```\n", "```python\n", "```", "``", "STOP", "ST", "OP", "<", "tool", "é",
]  # fmt: skip


def streamed(text: str, sizes: list[int], stop: list[str], tool_names: list[str]) -> str:
    found, at = list[str](), 0
    shown = ShownText(stop, tool_names, found.append)
    for size in [*sizes, len(text)]:
        shown.add(text[at : at + size])
        at += size
    return "".join(found)


def whole(text: str, stop: list[str], tool_names: list[str]) -> Message:
    reply = without_stop(Message(role="assistant", content=text), stop)
    return shown_reply(reply, name="s", tool_names=tool_names) if tool_names else reply


@example(["I look.", "\n", "```json\n", BARE, "```"], [1] * 60, [], ["look"])
@example(["```\n", "```", "I look.", "```\n", BARE, "```"], [1] * 99, [], ["look"])
@example(["```json\n", "[]", "```", "```\n", BARE, "```"], [1] * 99, [], ["look"])
@example([BARE, "STOP", "</think>"], [1] * 99, ["STOP"], ["look"])
@example(["<think>", LOOK, "</think>", "\n", BARE], [1] * 150, [], ["look"])
@example(["```python\n", "```\n", "I look.", "```json\n", BARE, "```"], [1] * 99, [], ["look"])
@given(
    st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(1, 9), max_size=30),
    st.sampled_from([[], ["STOP"], ["STOP", "T"], ["OPS", "<think>"]]), st.sampled_from([[], ["look"], ["other"]]),
)  # fmt: skip
def test_it_is_a_beginning_of_the_content(pieces: list[str], sizes: list[int], stop: list[str], tool_names: list[str]):
    text = "".join(pieces)
    final = whole(text, stop, tool_names)
    assert final.content.startswith(streamed(text, sizes, stop, tool_names))


@pytest.mark.parametrize(
    ("text", "tool_names", "shown"),
    [
        ("Plain words.", [], "Plain words."),
        ("Plain words. ", ["look"], "Plain words."),
        (f"I look.\n{LOOK}", ["look"], "I look."),
        ("1 < 2 and `x`, so:", ["look"], "1 < 2 and `x`, so:"),
        ("```python\nprint(1)", ["look"], "```python\nprint(1)"),
        ("```json\n[1]\n```\nand then", ["look"], "```json\n[1]\n```\nand then"),
        (f"Look:\n```json\n{BARE}", ["look"], "Look:"),
        (f"<think>no</think>\n{BARE}", ["look"], "<think>no</think>"),
        (BARE, ["look"], ""),
        (f"I say ST{LOOK}", [], f"I say ST{LOOK}"),
        ("one ST", [], "one "),
        ("one STOP two", [], "one "),
    ],
)
def test_as_much_is_shown_as_is_certain(text: str, tool_names: list[str], shown: str):
    assert streamed(text, [1] * len(text), ["STOP"], tool_names) == shown
