import pytest

from bough.data.base import (
    read_message,
    read_messages,
    read_tool_call,
    read_tools,
    read_turns,
    write_message,
    write_turns,
)
from bough.errors import RowError
from bough.types import Message, ToolCall, Turn

LS = {"name": "ls", "arguments": {"path": "/"}}


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "type": "function", "function": LS},
        {"id": "c", "function": {"name": "ls", "arguments": '{"path": "/"}'}},
        {"id": "c", "type": None, **LS},
    ],
)
def test_a_tool_call_is_read_in_every_style(call: dict):
    assert read_tool_call(call, "call") == ToolCall(name="ls", arguments={"path": "/"}, id="c")


def test_a_call_may_have_no_arguments_and_a_missing_number_is_null():
    for arguments in (None, "", "{}", {}):
        assert read_tool_call({"function": {"name": "ls", "arguments": arguments}}, "call") == ToolCall(name="ls")
    holed = {"function": {"name": "ls", "arguments": {"a": [float("nan")]}}}
    assert read_tool_call(holed, "call").arguments == {"a": [None]}


@pytest.mark.parametrize("arguments", ["ls", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', "5", 5, ["/"], "[" * 5000])
def test_other_arguments_are_named(arguments: object):
    with pytest.raises(RowError, match=r'^call "arguments" is') as error:
        read_tool_call({"function": {"name": "ls", "arguments": arguments}}, "call")
    assert error.value.reason == "wrong_type"


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_thinking_has_three_names(key: str):
    assert read_message({"role": "assistant", "content": "4", key: "2 + 2"}, "m").reasoning == "2 + 2"


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        ({"role": "user", "content": [{"type": "image_url"}]}, "wrong_type", "m content[0] is of type 'image_url'"),
        ({"role": "user", "content": ["Hi"]}, "wrong_type", "m content[0] is a string; it must be an object"),
        ({"role": "user", "content": 5}, "wrong_type", 'm "content" is a whole number; it must be a string or a list'),
        ({"role": "user", "content": None}, "missing_field", 'm "content" is missing'),
        ({"role": "function", "content": "x"}, "wrong_type", "m \"role\" is 'function'"),
        ({"content": "x"}, "missing_field", 'm "role" is missing'),
        ({"role": "assistant", "function_call": LS}, "wrong_type", 'm "function_call" is not supported'),
        ({"role": "assistant", "tool_calls": [{"type": "x"}]}, "wrong_type", "m tool_calls[0] \"type\" is 'x'"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "missing_field", 'm tool_calls[0] "name" is missing'),
        ("Hi", "wrong_type", "m is a string; it must be an object"),
    ],
)
def test_a_bad_message_says_where_and_why(message: object, reason: str, says: str):
    with pytest.raises(RowError) as error:
        read_message(message, "m")
    assert error.value.reason == reason
    assert str(error.value).startswith(says)


def test_null_keys_are_absent_keys():
    keys = (
        "name", "tool_calls", "tool_call_id", "reasoning_content", "weight", "action", "reward", "progress", "hint",
        "error", "state", "function_call",
    )  # fmt: skip
    row = {"role": "assistant", "content": "Hi", **dict.fromkeys(keys)}
    [(message, note)] = read_messages([row], "messages")
    assert message == Message(role="assistant", content="Hi")
    assert note == {"action": None, "reward": None, "progress": None, "error": None, "state": None, "trained": True}


def test_tools_are_a_list_or_its_json():
    assert (
        read_tools({}) == read_tools({"tools": None}) == read_tools({"tools": ""}) == read_tools({"tools": "[]"}) == []
    )
    assert read_tools({"tools": '[{"name": "ls"}]'}) == [{"name": "ls"}]
    with pytest.raises(RowError, match=r"^tools\[0\] is a string"):
        read_tools({"tools": ["ls"]})


def test_turns_are_written_with_what_is_known_of_them():
    reply = Message(role="assistant", content="ls", reasoning="", tool_calls=[ToolCall(name="ls", id="c")])
    seen = Message(role="tool", content="a.txt", tool_call_id="c", name="ls")
    turn = Turn(reply=reply, observation=[seen], action="ls", reward=0.5, error="slow", state="hall", trained=False)
    said = write_turns([turn])
    assert said == [
        {
            "role": "assistant",
            "content": "ls",
            "reasoning_content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": {}}}],
            "action": "ls",
            "reward": 0.5,
            "error": "slow",
            "state": "hall",
            "weight": 0,
        },
        {"role": "tool", "content": "a.txt", "tool_call_id": "c", "name": "ls"},
    ]
    asked = Message(role="user", content="Hi")
    assert read_turns(read_messages([write_message(asked), *said], "messages")) == ([asked], [turn])
