from datetime import UTC, datetime

import pytest

from bough.data.base import (
    digest,
    field,
    finite,
    jsonable,
    number,
    optional,
    reader,
    rest,
    split_turns,
    typed,
)
from bough.errors import RowError
from bough.types import Message, Task, ToolCall, Trajectory

USER, YES = Message(role="user", content="Hi"), Message(role="assistant", content="Yes.")
EMPTY = Message(role="assistant")
CALL = Message(role="assistant", tool_calls=[ToolCall(name="ls")])
TOOL = Message(role="tool", content="a.txt")
SYSTEM = Message(role="system", content="Be good.")


def reason_of(function, *arguments: object, **options: object) -> str:
    with pytest.raises(RowError) as error:
        function(*arguments, **options)
    return error.value.reason


def test_a_null_column_is_an_absent_one():
    assert reason_of(field, {"a": None}, "a", str) == reason_of(field, {}, "a", str) == "missing_field"
    assert optional({"a": None}, "a", str) is optional({}, "a", str) is None
    assert number({"a": None}, "a") is None


def test_types_are_named_as_json_names_them():
    with pytest.raises(RowError, match=r'^steps\[0\] "a" is a list; it must be a string$'):
        field({"a": []}, "a", str, "steps[0] ")
    assert number({"a": 3}, "a") == 3.0 and typed(True, bool, "x") is True
    with pytest.raises(RowError, match=r'^"a" is true or false; it must be a number$'):
        number({"a": True}, "a")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_a_number_is_finite(value: float):
    assert reason_of(finite, value, "x") == "not_finite"


def test_the_rest_is_kept_as_json():
    row = {
        "known": 1,
        "null": None,
        "nested": {"score": float("nan"), "list": [1, None]},
        "at": datetime(2024, 7, 9, tzinfo=UTC),
    }
    assert rest(row, "known") == {"nested": {"score": None, "list": [1, None]}, "at": "2024-07-09T00:00:00+00:00"}


def test_a_conversation_is_split_at_its_replies():
    start, turns = split_turns([SYSTEM, USER, YES, USER, CALL, TOOL, TOOL])
    assert start == [SYSTEM, USER]
    assert [turn.reply for turn in turns] == [YES, CALL]
    assert [turn.observation for turn in turns] == [[USER], [TOOL, TOOL]]
    start, turns = split_turns([USER, YES, USER, YES], begin=3)
    assert start == [USER, YES, USER] and [turn.reply for turn in turns] == [YES]
    _, turns = split_turns([USER, EMPTY, USER, YES], trained=[False, True])
    assert [turn.trained for turn in turns] == [False, True], "a reply that is not trained may be empty"


@pytest.mark.parametrize(
    ("messages", "begin", "reason"),
    [
        ([], None, "unbalanced_roles"),
        ([USER], None, "unbalanced_roles"),
        ([USER, YES], 0, "unbalanced_roles"),
        ([USER, YES], 2, "unbalanced_roles"),
        ([YES], None, "unbalanced_roles"),
        ([USER, EMPTY], None, "empty_completion"),
    ],
)
def test_a_conversation_without_a_reply_in_its_place_is_refused(
    messages: list[Message], begin: int | None, reason: str
):
    assert reason_of(split_turns, messages, begin=begin) == reason


@pytest.mark.parametrize("messages", [[USER, YES, YES], [USER, SYSTEM], [USER, TOOL], [SYSTEM, YES], [USER, YES, TOOL]])
def test_roles_out_of_order_are_refused(messages: list[Message]):
    assert reason_of(split_turns, messages) == "unbalanced_roles"
    split_turns([SYSTEM, USER, USER, CALL, TOOL, TOOL, USER, YES, USER])


def test_equal_messages_have_one_digest():
    assert digest(USER, YES) == digest(Message(role="user", content="Hi"), YES)
    assert digest(USER, YES) != digest(YES, USER)
    # A name that a file on another machine may already hold.
    assert digest(USER) == "4cb654ec9aa0820a"


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    ("info", "reason"),
    [({"a": nested(200)}, "wrong_type"), ({"a": nested(2000)}, "wrong_type"), ({"a": "\ud800"}, "not_utf8")],
)
def test_whatever_is_wrong_with_a_row_is_a_row_error(info: dict, reason: str):
    @reader
    def read(row: dict) -> Trajectory:
        return Trajectory(id="a", task=Task(id="t"), start=[USER], turns=[], info=jsonable(row))

    with pytest.raises(RowError) as error:
        read(info)
    assert error.value.reason == reason
    assert len(str(error.value)) < 200
