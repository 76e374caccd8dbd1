import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.forms import MAX_REPLY, MalformedError
from bough.chat.lines import PROMPT, _actions, parse, write


@pytest.mark.parametrize(
    ("reply", "thought", "action"),
    [
        ("THOUGHT: I look.\nACTION: go to shelf 1", "I look.", "go to shelf 1"),
        ("ACTION: go to shelf 1", "", "go to shelf 1"),
        ("Think: I look.\nAct: go to shelf 1", "I look.", "go to shelf 1"),
        ("thought:I look.\naction:go to shelf 1", "I look.", "go to shelf 1"),
        ("  THOUGHT : I look.\n\n  ACTION : go to shelf 1  ", "I look.", "go to shelf 1"),
        ("I look.\nACTION: go to shelf 1", "I look.", "go to shelf 1"),
        ("THOUGHT: Two lines\nof thought.\nACTION: look", "Two lines\nof thought.", "look"),
        ("THOUGHT: I look. ACTION: go to shelf 1", "I look.", "go to shelf 1"),
        ("THOUGHT: My next action: to look.\nACTION: look", "My next action: to look.", "look"),
        ("ACTION: go to shelf 1\nThen I shall see.", "", "go to shelf 1"),
        ("ACTION: go to shelf 1\r\n", "", "go to shelf 1"),
        ("ACTION:\ngo to shelf 1", "", "go to shelf 1"),
        ("**THOUGHT:** I look.\n**ACTION:** `go to shelf 1`", "I look.", "go to shelf 1"),
        ("THOUGHT: A reaction: none.\nACTION: look", "A reaction: none.", "look"),
        ("ACTION: Look", "", "Look"),
    ],
)
def test_thought_and_action_are_read(reply: str, thought: str, action: str):
    said = parse(reply)
    assert (said.thought, said.action) == (thought, action)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "no action"),
        ("go to shelf 1", "no action"),
        ("THOUGHT: I look.", "no action"),
        ("Reaction: none", "no action"),
        ("ACTION:", "empty"),
        ("ACTION:   \n", "empty"),
        ("ACTION: look\nACTION: inventory", "2 actions"),
        ("THOUGHT: a\nACTION: look\nTHOUGHT: b\nact: look", "2 actions"),
        ("ACTION:\nTHOUGHT: I look.", "comes last"),
    ],
)
def test_what_is_missing_or_ambiguous_is_told_with_an_example(reply: str, message: str):
    with pytest.raises(MalformedError, match=message) as raised:
        parse(reply)
    assert str(raised.value).endswith(PROMPT)


ONE_EXPRESSION = re.compile(
    r"(?:^[ \t*]*(?i:action|act)|(?<=[ \t])ACTION)[ \t]*:\**[ \t]*(?:\r?\n[ \t]*)?([^\r\n]*)", re.MULTILINE
)
PIECES = ["ACTION", "action", "Act", "ACTıON", "ACT", ":", " ", "\t", "*", "\n", "\r", "x", "`", "THOUGHT:", "look"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_actions_are_found_where_one_expression_finds_them(reply: str):
    found = [(match.start(), match[1].strip().strip("`").strip()) for match in ONE_EXPRESSION.finditer(reply)]
    assert list(_actions(reply)) == found


def test_a_line_of_many_tags_takes_linear_time():
    with pytest.raises(MalformedError, match="no action"):
        parse("x act:" * (MAX_REPLY // 6))


def test_a_reply_is_written_in_two_lines_or_one():
    assert write("look", "I look\n around. ") == "THOUGHT: I look around.\nACTION: look"
    assert write("look") == "ACTION: look"


def test_the_example_of_the_prompt_is_in_the_form():
    assert parse(PROMPT.split("\n", 1)[1]).action == "go to shelf 1"


words = st.text(alphabet="abc 12.,é", min_size=1).filter(str.strip)


@given(words, st.text(alphabet="abc 12.,\né"))
def test_what_is_written_is_read_back(action: str, thought: str):
    said = parse(write(action, thought))
    assert (said.action, said.thought) == (action.strip(), " ".join(thought.split()))


@given(st.text())
def test_no_reply_does_worse_than_being_malformed(reply: str):
    with suppress(MalformedError):
        assert parse(reply).action
