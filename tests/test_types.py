import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn, conversation, split_conversation
from tests.data.file_records import messages, starts, text


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"prompt_ids": [1, -2], "completion_ids": []}, "not negative"),
        ({"prompt_ids": [1.5], "completion_ids": []}, "valid integer"),
        ({"prompt_ids": [True], "completion_ids": []}, "valid integer"),
        ({"prompt_ids": ["7"], "completion_ids": []}, "valid integer"),
        ({"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-0.1]}, "1 log-probabilities for 2"),
        ({"prompt_ids": [1], "completion_ids": [2], "logprobs": [float("nan")]}, "finite"),
        ({"prompt_ids": [1], "completion_ids": [2], "logprobs": [0.5]}, "is 0.5; it must be at most 0"),
        ({"prompt_ids": [1], "completion_ids": [2], "tokens": 3}, "Extra inputs"),
    ],
)
def test_a_call_that_cannot_be_true_is_refused(fields: dict[str, object], complaint: str):
    with pytest.raises(ValidationError, match=complaint):
        Call.model_validate(fields)


def test_only_the_agent_replies_and_only_the_world_observes():
    with pytest.raises(ValidationError, match="reply is the assistant's"):
        Turn(reply=user("Hi"))
    with pytest.raises(ValidationError, match="next turn's reply"):
        Turn(reply=assistant("Hi"), observation=[assistant("Hi")])


def test_a_pair_needs_two_different_replies():
    turn = Turn(reply=assistant("look"))
    with pytest.raises(ValidationError, match='"rejected" equals "chosen"'):
        Pair(task=Task(id="t"), start=[user("Hi")], chosen=[turn], rejected=[turn.model_copy(update={"reward": 1.0})])


def test_the_attempts_of_a_group_are_at_its_task():
    attempts = [Trajectory(id=name, task=Task(id=name), start=[user("Hi")], turns=[]) for name in ("t", "other")]
    with pytest.raises(ValidationError, match="are at one task, 't', not at 'other'"):
        Group(task=Task(id="t"), attempts=attempts)


def test_records_are_never_changed_after_the_fact():
    trajectory = Trajectory(id="a", task=Task(id="t"), start=[user("Hi")], turns=[])
    with pytest.raises(ValidationError, match="frozen"):
        trajectory.success = True


def test_a_conversation_splits_at_the_replies():
    messages = [user("Hi"), assistant("a"), user("1"), user("2"), assistant("b")]
    start, turns = split_conversation(messages)
    assert start == messages[:1]
    assert [(t.reply.content, [m.content for m in t.observation]) for t in turns] == [("a", ["1", "2"]), ("b", [])]
    assert split_conversation([user("Hi")]) == ([user("Hi")], [])


# What a conversation is made of; the rest of an arbitrary record takes four times as long to draw.
turns = st.builds(
    Turn,
    reply=st.builds(
        Message,
        role=st.just("assistant"),
        content=text,
        reasoning=st.none() | text,
        tool_calls=st.lists(
            st.builds(ToolCall, name=text, arguments=st.just({"x": [1]}), id=st.none() | text), max_size=2
        ),
    ),
    observation=st.lists(messages("user", "tool"), max_size=2),
)


@given(starts, st.lists(turns, max_size=4))
def test_splitting_undoes_joining(start: list[Message], turns: list[Turn]):
    trajectory = Trajectory(id="a", task=Task(id="t"), start=start, turns=turns)
    assert conversation(*split_conversation(trajectory.messages)) == trajectory.messages == conversation(start, turns)
