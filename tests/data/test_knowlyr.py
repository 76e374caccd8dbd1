import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.data.knowlyr import read_dpo, read_grpo, read_sft, write_dpo, write_grpo, write_sft
from bough.errors import RowError
from bough.types import Group, Message, Pair, Task, Trajectory, Turn
from tests.data.records import endings, infos, tasks, texts
from tests.data.samples import rows
from tests.data.test_steps import spoken

starts = texts.map(lambda text: [Message(role="user", content=text)])


def test_a_demonstration_is_the_task_then_thoughts_actions_and_observations():
    trajectory = read_sft(rows("knowlyr_sft_steps")[0])
    instruction, given_input = (
        "Fix the off-by-one bug in sort function",
        '{"repo": "owner/repo", "base_commit": "abc123"}',
    )
    assert trajectory.start == [Message(role="user", content=f"{instruction}\n\n{given_input}")]
    assert trajectory.task == Task(id="task-001", data={"instruction": instruction, "input": given_input})
    assert [turn.reward for turn in trajectory.turns] == [0.7, 0.9]
    assert trajectory.turns[1].reply.content == (
        "Thought: The range stops one short.\nI will widen it by one.\n"
        "Action: edit_file /sort.py <<EOF\n    for i in range(len(arr) - 1):\nEOF"
    )
    assert trajectory.turns[1].observation == [Message(role="user", content="Observation: File edited")]
    assert trajectory.rewards == {"reward": 0.85}
    assert trajectory.info["metadata"]["agent_framework"] == "openhands"


def test_text_and_list_give_the_same_turns_and_a_text_without_steps_is_one_reply():
    flat, listed = read_sft(rows("knowlyr_sft_flat")[0]), rows("knowlyr_sft_flat")[0]
    del listed["response"]
    listed["steps"] = [
        {"thought": "Let me read the file", "action": "read_file /sort.py", "observation": "def sort(arr): ..."},
        {"thought": "Fix the bug", "action": "edit_file /sort.py", "observation": "File edited"},
    ]
    assert read_sft(listed) == flat
    plain = read_sft({"instruction": "Say hi", "input": "", "response": "hi"})
    assert plain.start == [Message(role="user", content="Say hi")] and plain.task.data == {}
    assert plain.turns == [Turn(reply=Message(role="assistant", content="hi"))]


# With other spacing than ours it is written as text.
SPACED = {"response": "Step 1:\nAction:ls\nObservation:a\n\nStep 2:\nAction:\n  finish", "task_id": "t"}


@pytest.mark.parametrize(
    "row", [*rows("knowlyr_sft_steps"), rows("knowlyr_sft_flat")[3], {"instruction": "Go", "input": "", **SPACED}]
)
def test_a_demonstration_is_written_as_the_row_it_came_from(row: dict):
    assert write_sft(read_sft(row)) == row


def test_the_sides_of_a_preference_are_turns_where_they_hold_observations():
    whole = read_dpo(rows("knowlyr_dpo")[0])
    assert [turn.reply.content for turn in whole.chosen] == ["Step 1:\nAction: read_file\n\nStep 2:\nAction: edit_file"]
    assert whole.margin == 0.55 and whole.info["metadata"]["rejected_reward"] == 0.30
    pair = read_dpo(rows("knowlyr_dpo")[2])
    assert [turn.action for turn in pair.chosen] == [
        "bash pytest tests/test_dates.py",
        "edit_file tests/test_dates.py",
        "finish",
    ]
    assert [turn.action for turn in pair.rejected] == ["bash rm tests/test_dates.py", "finish"]
    assert pair.rejected[0].observation == [Message(role="user", content="Observation:")]


def test_a_group_holds_its_attempts_and_their_rewards():
    group = read_grpo(rows("knowlyr_grpo")[0])
    assert group.task.id == "task-001"
    assert [attempt.rewards for attempt in group.attempts] == [{"reward": 0.85}, {"reward": 0.55}, {"reward": 0.2}]
    assert [attempt.id for attempt in group.attempts] == ["task-001/0", "task-001/1", "task-001/2"]
    assert all(attempt.task == group.task for attempt in group.attempts)


def test_step_rewards_are_the_rewards_of_the_turns():
    group = read_grpo(rows("knowlyr_grpo")[2])
    assert [[turn.reward for turn in attempt.turns] for attempt in group.attempts] == [[0.5, 1.0], [0.0]]
    assert all("step_rewards" not in attempt.info for attempt in group.attempts)
    one_reply = read_grpo(rows("knowlyr_grpo")[1]).attempts[0]
    assert one_reply.info == {"step_rewards": [0.4, 0.9]} and one_reply.turns[0].reward is None
    row = rows("knowlyr_grpo")[2]
    row["trajectories"][0]["step_rewards"] = [1, 2, 3]
    with pytest.raises(RowError, match=r"^trajectories\[0\] has 3 step_rewards for 2 steps$"):
        read_grpo(row)


@pytest.mark.parametrize(
    ("read", "row", "reason"),
    [
        (read_sft, {"input": "x", "response": "y"}, "missing_field"),
        (read_sft, {"instruction": "x"}, "missing_field"),
        (read_sft, {"instruction": "x", "response": ""}, "empty_completion"),
        (read_sft, {"instruction": "x", "input": {"repo": "a"}, "response": "y"}, "wrong_type"),
        (read_sft, {"instruction": "x", "response": "y", "reward": float("inf")}, "not_finite"),
        (read_sft, {"instruction": "x", "response": "y", "reward": "high"}, "wrong_type"),
        (read_sft, {"instruction": "x", "response": "y", "task_id": 1.5}, "wrong_type"),
        (read_dpo, {"prompt": "x", "chosen": "y"}, "missing_field"),
        (read_dpo, {"prompt": "x", "chosen": "Step 1:\nAction: y", "rejected": "Action: y"}, "same_reply"),
        (read_dpo, {"prompt": "x", "chosen": "y", "rejected": "z", "reward_margin": float("nan")}, "not_finite"),
        (read_grpo, {"prompt": "x", "trajectories": []}, "missing_field"),
        (read_grpo, {"prompt": "x", "trajectories": [{"reward": 1}]}, "missing_field"),
        (read_grpo, {"prompt": "x", "trajectories": [{"response": "y", "step_rewards": ["z"]}]}, "wrong_type"),
        (read_grpo, {"prompt": "x", "trajectories": [{"response": "y", "step_rewards": [float("nan")]}]}, "not_finite"),
        (read_grpo, {"prompt": "x", "trajectories": ["y"]}, "wrong_type"),
        (read_grpo, {"trajectories": [{"response": "y"}]}, "missing_field"),
    ],
)
def test_a_bad_row_says_why(read, row: dict, reason: str):
    with pytest.raises(RowError) as error:
        read(row)
    assert error.value.reason == reason


@given(
    task=tasks,
    start=starts,
    sides=st.lists(spoken(), min_size=2, max_size=3),
    info=infos,
    ending=st.fixed_dictionaries(endings),
    reward=st.none() | st.floats(-1, 1),
)
@settings(max_examples=100, deadline=None)
def test_records_are_read_back_as_they_were_written(
    task: Task, start: list[Message], sides: list, info: dict, ending: dict, reward: float | None
):
    attempts = [
        Trajectory(id=f"try {i}", task=task, start=start, turns=turns, info=info, **ending)
        for i, turns in enumerate(sides)
    ]
    assert read_sft(write_sft(attempts[0])) == attempts[0]
    scored = [
        one.model_copy(update={"turns": [turn.model_copy(update={"reward": reward}) for turn in one.turns]})
        for one in attempts
    ]
    group = Group(task=task, attempts=scored, info=info)
    assert read_grpo(write_grpo(group)) == group
    if [turn.reply for turn in sides[0]] != [turn.reply for turn in sides[1]]:
        pair = Pair(task=task, start=start, chosen=sides[0], rejected=sides[1], reason="loop", margin=0.5, info=info)
        assert read_dpo(write_dpo(pair)) == pair


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"tools": [{"name": "ls"}]}, "tools"),
        ({"start": [Message(role="system", content="Be good."), Message(role="user", content="Go")]}, "start"),
        ({"info": {"steps": 3}}, '"steps" is a whole number'),
        ({"turns": [Turn(reply=Message(role="assistant", content="Yes."), trained=False)]}, r"turns\[0\].trained"),
        ({"turns": [Turn(reply=Message(role="assistant", content="ACTION: go"), action="go")]}, r"turns\[0\]"),
    ],
)
def test_what_a_row_cannot_hold_is_refused_and_named(change: dict, place: str):
    plain = read_sft({"instruction": "Go", "response": "Action: go"})
    with pytest.raises(RowError, match=place) as error:
        write_sft(plain.model_copy(update=change))
    assert error.value.reason == "cannot_express"


def test_an_observation_that_reads_like_a_step_is_not_written_as_text():
    pair = read_dpo(rows("knowlyr_dpo")[2])
    seen = pair.chosen[0].model_copy(
        update={"observation": [Message(role="user", content="Observation: x\nStep 2:\nAction: rm")]}
    )
    with pytest.raises(RowError) as error:
        write_dpo(pair.model_copy(update={"chosen": [seen, *pair.chosen[1:]]}))
    assert error.value.reason == "cannot_express"

    with pytest.raises(RowError, match="knowlyr-dpo cannot express a trajectory"):
        write_dpo(read_sft(rows("knowlyr_sft_flat")[0]))
