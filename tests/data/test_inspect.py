import pytest

from bough.data.inspect import read
from bough.errors import RowError
from bough.types import Message, ToolCall
from tests.data.samples import rows


def sample(**changed: object) -> dict:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "source": "generate"}]
    return {"eval": {"task": "t", "model": "m"}, "sample": {"id": 1, "epoch": 2, "messages": said, **changed}}


def test_tools_calls_and_their_results_are_read():
    calls = read(rows("inspect_samples")[1])
    [use, answer] = calls.turns
    assert use.reply.tool_calls == [ToolCall(name="add", arguments={"x": 2, "y": 3}, id=use.reply.tool_calls[0].id)]
    assert use.observation[0].content == "5" and use.observation[0].name == "add"
    assert answer.reply.content == "The sum is 5."
    assert calls.tools[0]["function"]["parameters"]["required"] == ["x", "y"]
    assert (calls.success, calls.rewards) == (True, {"includes": 1.0})
    assert calls.task.data == {"target": "5", "metadata": {"level": 1}}


def test_reasoning_is_apart_from_the_text():
    wrong = read(rows("inspect_samples")[0])
    assert wrong.turns[0].reply == Message(role="assistant", content="It is 3.", reasoning="One and one.")
    assert (wrong.success, wrong.rewards) == (False, {"includes": 0.0})


@pytest.mark.parametrize(
    ("scores", "rewards", "success"),
    [
        ({"a": {"value": 0.25}}, {"a": 0.25}, None),
        ({"a": {"value": True}}, {"a": 1.0}, True),
        ({"a": {"value": "P"}, "b": {"value": "I"}}, {"a": 0.5, "b": 0.0}, False),
        ({"a": {"value": {"style": 3, "facts": "C"}}}, {"a/style": 3.0, "a/facts": 1.0}, None),
        ({"a": {"value": "B+"}}, {}, None),
    ],
)
def test_scores_are_rewards(scores: dict, rewards: dict, success: bool | None):
    trajectory = read(sample(scores=scores))
    assert (trajectory.rewards, trajectory.success) == (rewards, success)


def test_long_texts_come_from_the_attachments():
    said = [{"role": "user", "content": "attachment://7a"}, {"role": "assistant", "content": "Yes."}]
    trajectory = read(sample(messages=said, attachments={"7a": "a long page"}))
    assert trajectory.start[0].content == "a long page"
    with pytest.raises(RowError, match='"7a" is missing'):
        read(sample(messages=said))


def test_replies_that_came_with_the_input_are_context():
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "source": "input"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye", "source": "generate"},
    ]
    assert [turn.trained for turn in read(sample(messages=said)).turns] == [False, True]


def test_what_ended_a_sample_is_kept():
    assert read(sample(error={"message": "lost"})).stop == "error"
    assert read(sample(limit={"type": "message", "limit": 9})).stop == "limit_message"


def test_a_call_that_inspect_could_not_parse_is_a_bad_row():
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": "f", "parse_error": "no JSON"}]},
    ]
    with pytest.raises(RowError, match="could not parse"):
        read(sample(messages=said))
