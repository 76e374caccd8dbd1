import json

import pytest
from hypothesis import given, settings

from bough.data.trl import read, write
from bough.errors import RowError
from bough.types import Group, Message, Pair, Task, Trajectory
from tests.data.records import pairs, trajectories
from tests.data.samples import rows

USER = {"role": "user", "content": "Hi"}
YES = {"role": "assistant", "content": "Yes."}
NO = {"role": "assistant", "content": "No."}


def test_messages_become_a_start_and_turns():
    trajectory = read(rows("trl_messages")[0])
    assert [message.role for message in trajectory.start] == ["system", "user"]
    assert [turn.reply.content for turn in trajectory.turns] == [
        "THOUGHT: First find an apple.\nACTION: go to table 1",
        "ACTION: take apple 1 from table 1",
    ]
    assert trajectory.turns[0].observation == [Message(role="user", content="On the table 1, you see an apple 1.")]
    assert trajectory.info == {"source": "alfworld"}


def test_tool_calls_results_and_thinking_are_read():
    trajectory = read(rows("trl_messages")[1])
    reply = trajectory.turns[0].reply
    assert reply.tool_calls[0].name == "code_interpreter"
    assert reply.tool_calls[0].arguments == {"code": "print(23 * 17 + 4)"}
    assert reply.reasoning == "Better not in my head."
    assert trajectory.turns[0].observation == [Message(role="tool", name="code_interpreter", content="395")]
    listed, text = rows("trl_messages")[1:]
    assert isinstance(text["tools"], str)
    assert read(text).tools == listed["tools"] == read(listed).tools


def test_a_prompt_is_the_start_with_its_earlier_replies():
    trajectory = read(rows("trl_prompt_completion")[0])
    assert [message.role for message in trajectory.start] == ["user", "assistant", "user"]
    assert [turn.reply.content for turn in trajectory.turns] == ["click('2')"]


def test_strings_are_what_user_and_assistant_say():
    trajectory = read({"prompt": "The sky is", "completion": " blue."})
    assert trajectory.messages == [
        Message(role="user", content="The sky is"),
        Message(role="assistant", content=" blue."),
    ]
    pair = read({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."})
    assert [turn.reply.content for turn in (*pair.chosen, *pair.rejected)] == [" blue.", " green."]


def test_the_sides_of_a_preference_may_hold_observations():
    pair = read(rows("trl_preference")[0])
    assert [turn.reply.content for turn in pair.chosen] == ["ACTION: take pen 1 from desk 1", "ACTION: use desklamp 1"]
    assert pair.chosen[0].observation == [Message(role="user", content="You pick up the pen 1.")]


def test_an_implicit_prompt_ends_where_the_conversations_part():
    pair = read(rows("trl_preference_implicit")[1])
    assert [message.content for message in pair.start] == ["Find the keys.", "ACTION: look", "You see a sofa 1."]
    assert [turn.reply.content for turn in (*pair.chosen, *pair.rejected)] == ["ACTION: go to sofa 1", "ACTION: look"]
    assert pair.info == {"score_chosen": 8.0, "score_rejected": 2.0}


def test_conversations_that_part_at_an_observation_or_end_early_part_at_the_last_common_reply():
    seen, unseen = {"role": "user", "content": "A key."}, {"role": "user", "content": "Nothing."}
    pair = read({"chosen": [USER, YES, seen, YES], "rejected": [USER, YES, unseen, NO]})
    assert pair.start == [Message(role="user", content="Hi")]
    assert [turn.reply.content for turn in pair.rejected] == ["Yes.", "No."]
    pair = read({"chosen": [USER, YES, USER, YES], "rejected": [USER, YES]})
    assert len(pair.start) == 1 and len(pair.chosen) == 2 and len(pair.rejected) == 1


def test_the_same_start_is_the_same_task():
    first, second = read({"messages": [USER, YES]}), read({"messages": [USER, NO]})
    assert first.task == second.task
    weighed = read({"messages": [USER, {**YES, "weight": 0}, USER, NO]})
    assert [turn.trained for turn in weighed.turns] == [False, True]
    assert first.id != second.id
    assert read({"messages": [USER, YES], "task_id": 7}).task.id == "7"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "unbalanced_roles"),
        ({"messages": [USER]}, "unbalanced_roles"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty_completion"),
        ({"messages": "Hi"}, "wrong_type"),
        ({"messages": None}, "missing_field"),
        ({"messages": [{"role": "user"}, YES]}, "missing_field"),
        ({"messages": [{"role": "narrator", "content": "x"}, YES]}, "wrong_type"),
        ({"messages": [USER, YES], "tools": "["}, "wrong_type"),
        ({"messages": [USER, {**YES, "weight": 0.5}]}, "wrong_type"),
        ({"messages": [USER, YES], "reward": float("nan")}, "not_finite"),
        ({"messages": [USER, YES], "reward": 10**400}, "not_finite"),
        ({"prompt": [USER], "completion": [USER, YES]}, "unbalanced_roles"),
        ({"prompt": [USER], "completion": []}, "unbalanced_roles"),
        ({"prompt": "Hi", "completion": ""}, "empty_completion"),
        ({"completion": "Hi"}, "missing_field"),
        ({"prompt": "Hi", "chosen": "Yes."}, "missing_field"),
        ({"prompt": "Hi", "chosen": "Yes.", "rejected": "Yes."}, "same_reply"),
        ({"chosen": "The sky is blue.", "rejected": "The sky is green."}, "missing_field"),
        ({"chosen": [USER, YES], "rejected": [USER, YES]}, "same_reply"),
        ({"chosen": [USER, YES], "rejected": [NO]}, "missing_field"),
        ({"chosen": [], "rejected": []}, "missing_field"),
    ],
)
def test_a_bad_row_says_why(row: dict, reason: str):
    with pytest.raises(RowError) as error:
        read(row)
    assert error.value.reason == reason


@given(record=trajectories | pairs())
@settings(max_examples=100, deadline=None)
def test_a_record_is_read_back_as_it_was_written(record: Trajectory | Pair):
    assert read(json.loads(json.dumps(write(record)))) == record


def test_what_is_written_is_what_trl_expects():
    pair = read(rows("trl_preference")[1])
    row = write(pair)
    assert list(row) == ["prompt", "chosen", "rejected", "tools", "task_id"]
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"code": "print(2 ** 10)"}
    assert row["prompt"] == rows("trl_preference")[1]["prompt"]


def test_a_group_and_an_empty_episode_have_no_row():
    nothing = Trajectory(id="a", task=Task(id="t"), start=[Message(role="user", content="Hi")], turns=[])
    for record in (nothing, Group(task=Task(id="t"), attempts=[nothing])):
        with pytest.raises(RowError) as error:
            write(record)
        assert error.value.reason == "cannot_express"
