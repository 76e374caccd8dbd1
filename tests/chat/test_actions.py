import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat import tool_calls
from bough.chat.tool_calls import (
    COMMAND_PROMPT,
    FUNCTION_PROMPT,
    LINE_PROMPT,
    MAX_CALLS,
    MAX_REPLY,
    MalformedError,
    ParsedReply,
    _actions,
    command_text,
    function_text,
    parse_command,
    parse_function,
    parse_line,
    read_call,
    write,
    write_command,
    write_line,
)
from bough.types import ToolCall


@pytest.mark.parametrize("parse", [tool_calls.parse, parse_function, parse_command, parse_line])
def test_a_reply_that_is_too_long_is_refused_with_a_sentence(parse: Callable[[str], ParsedReply]):
    with pytest.raises(MalformedError, match=r"The reply has 1,000,001 characters; at most 1,000,000 are read"):
        parse("a" * (MAX_REPLY + 1))


def test_two_actions_are_malformed_and_lines_with_calls_limited_in_number():
    with pytest.raises(MalformedError, match="2 actions; take one at a time"):
        parse_command("action: WAIT()\naction: WAIT()")
    with pytest.raises(MalformedError, match="That is 100 actions"):
        parse_function("f(1)\n" * MAX_CALLS)
    with pytest.raises(MalformedError, match="more than 100 calls"):
        parse_function("f(1)\n" * (MAX_CALLS + 1))


@pytest.mark.parametrize(
    ("reply", "thought", "action"),
    [
        ("The second box is right.\nclick('3')", "The second box is right.", "click('3')"),
        ("```python\nclick('3')\n```", "", "click('3')"),
        ("`click('3')`", "", "click('3')"),
        ("```\nclick('3')```", "", "click('3')"),
        ("  click( '3' )  ", "", "click('3')"),
        ("I could use click('1') here, but\nclick('2')", "I could use click('1') here, but", "click('2')"),
        ("<think>\nclick('1')\n</think>\nclick('2')", "", "click('2')"),
        ("click('2')\nThat should do it.", "", "click('2')"),
    ],
)
def test_the_call_is_the_line_that_is_one_and_the_thought_stands_before_it(reply: str, thought: str, action: str):
    said = parse_function(reply)
    assert (said.thought, said.action) == (thought, action)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('fill(3, text="it\'s")', {"0": 3, "text": "it's"}),
        ("select_option('1', ['a', 'b'])", {"0": "1", "1": ["a", "b"]}),
        ("mouse_click(-3, 4.5)", {"0": -3, "1": 4.5}),
    ],
)
def test_arguments_are_read_by_place_and_by_name(written: str, arguments: dict):
    assert parse_function(written).calls == (ToolCall(name=written.partition("(")[0], arguments=arguments),)


@pytest.mark.parametrize(
    "reply",
    [
        "", "click", "click 3", "click(element)", "click('3'", "a.click('3')", "click('3').now()",
        "click(*x)", "click(**x)",
        "click(open('x'))", "click(f'{x}')", "click(b'3')", "click({'a': 1})", "click(1e999)", "click([[1]])", "\x00(",
        "click('" + "a" * 30_000 + "')", "f" + "(" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_call_is_malformed(reply):
    with pytest.raises(MalformedError, match="no action"):
        parse_function(reply)


def test_a_written_function_reads_back():
    call = ToolCall(name="fill", arguments={"0": "3", "text": "a 'b' \"c\"\né"})
    reply = write(function_text(call), "Because.")
    said = parse_function(reply)
    assert said.calls == (call,) and said.thought == "Because."
    assert write(said.action, said.thought) == reply
    assert write("wait()") == "wait()"


def test_the_examples_of_the_prompts_are_in_the_form():
    assert parse_function(FUNCTION_PROMPT.partition("example: ")[2]).action == "click('3')"
    assert parse_command(COMMAND_PROMPT.partition("\n")[2]).action == 'CLICK(selector="#ok")'
    assert parse_line(LINE_PROMPT.partition("\n")[2]).action == "go to shelf 1"


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1e400", "-1e400", "[0x" + "f" * 5000 + "]"])
def test_a_number_that_cannot_be_written_is_no_argument(number: str):
    assert read_call(f"f({number})") is None


def test_thought_and_command_are_read():
    said = parse_command('thought: The button\nis there.\naction: CLICK(selector="#ok > b")')
    assert said.thought == "The button\nis there."
    assert said.action == 'CLICK(selector="#ok > b")'
    assert said.calls == (ToolCall(name="click", arguments={"selector": "#ok > b"}),)


@pytest.mark.parametrize(
    "reply",
    ["Action: click(selector='#a')", "thought:\nACTION : `CLICK(selector='#a')`", 'x\naction:CLICK(selector="#a")'],
)
def test_case_quotes_and_fences_do_not_matter(reply):
    said = parse_command(f"<think>action: WAIT()</think>{reply}")
    assert said.action == 'CLICK(selector="#a")' and said.calls[0].name == "click"


COMMANDLESS = ["", "thought: only", "CLICK(selector='#a')", "the action: is CLICK()"]
WRONG = ["", "click the button", "CLICK(selector=#a)", "CLICK('a', b)", "CLICK(x"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [*((reply, "no action") for reply in COMMANDLESS), *((f"action: {each}", "is not a command") for each in WRONG)],
)
def test_a_reply_without_a_command_is_malformed(reply: str, said: str):
    with pytest.raises(MalformedError, match=said):
        parse_command(reply)


def test_a_written_command_reads_back():
    call = ToolCall(name="fill", arguments={"selector": "#a", "text": 'say "é"\n'})
    reply = write_command(command_text(call), "Because.")
    assert reply == 'thought: Because.\naction: FILL(selector="#a", text="say \\"é\\"\\n")'
    said = parse_command(reply)
    assert said.calls == (call,) and said.thought == "Because."
    assert write_command(said.action, said.thought) == reply


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
def test_thought_and_line_are_read(reply: str, thought: str, action: str):
    said = parse_line(reply)
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
        parse_line(reply)
    assert str(raised.value).endswith(LINE_PROMPT)


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
        parse_line("x act:" * (MAX_REPLY // 6))


def test_a_reply_is_written_in_two_lines_or_one():
    assert write_line("look", "I look\n around. ") == "THOUGHT: I look around.\nACTION: look"
    assert write_line("look") == "ACTION: look"


words = st.text(alphabet="abc 12.,é", min_size=1).filter(str.strip)


@given(words, st.text(alphabet="abc 12.,\né"))
def test_a_written_line_reads_back(action: str, thought: str):
    said = parse_line(write_line(action, thought))
    assert (said.action, said.thought) == (action.strip(), " ".join(thought.split()))


@given(st.text())
def test_no_reply_does_worse_than_being_malformed(reply: str):
    with suppress(MalformedError):
        assert parse_line(reply).action
