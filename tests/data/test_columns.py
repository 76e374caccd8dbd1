import pytest

from bough.data.base import read_pair, read_trajectory, reader, write_columns, write_ending
from bough.errors import RowError
from bough.types import Message, Task, Turn

START = [Message(role="user", content="Hi")]
YES, NO = ([Turn(reply=Message(role="assistant", content=text))] for text in ("Yes.", "No."))


def test_every_column_has_its_field():
    row = {
        "id": 5, "task_id": "t", "environment": "household", "seed": 3, "task_data": {"room": "kitchen"},
        "reward": 1, "rewards": {"format": 0.5, "judge": None}, "success": True, "stop": "done",
        "note": "x", "empty": None,
    }  # fmt: skip
    trajectory = read_trajectory(row, START, YES)
    assert trajectory.id == "5"
    assert trajectory.task == Task(id="t", environment="household", seed=3, data={"room": "kitchen"})
    assert trajectory.rewards == {"reward": 1.0, "format": 0.5, "judge": None}
    assert trajectory.success is True and trajectory.stop == "done"
    assert trajectory.info == {"note": "x"}
    assert write_columns(trajectory) == {key: value for key, value in row.items() if value is not None} | {"id": "5"}


def test_a_row_without_names_is_named_by_what_it_says():
    trajectory = read_trajectory({}, START, YES)
    assert trajectory.task.id == read_trajectory({}, START, NO).task.id
    assert trajectory.id != read_trajectory({}, START, NO).id
    assert "id" not in write_columns(trajectory)
    assert read_trajectory({"id": "webshop_7"}, START, YES).task.id == "webshop_7"


def test_an_unscored_reward_is_not_a_reward_of_zero():
    assert read_trajectory({}, START, YES).rewards == {}
    trajectory = read_trajectory({"reward": None, "rewards": {"reward": None}}, START, YES)
    assert trajectory.rewards == {"reward": None}
    assert write_ending(trajectory) == {"rewards": {"reward": None}}


def test_a_pair_needs_two_different_replies():
    assert read_pair({"reason": "loop", "gap": 2}, START, YES, NO, margin="gap").margin == 2.0
    with pytest.raises(RowError) as error:
        reader(lambda row: read_pair(row, START, YES, YES))({})
    assert error.value.reason == "same_reply"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"seed": 1.5}, '"seed" is a number; it must be a whole number'),
        ({"success": 1}, '"success" is a whole number; it must be true or false'),
        ({"environment": {}}, '"environment" is an object; it must be a string'),
        ({"rewards": [1]}, '"rewards" is a list; it must be an object'),
        ({"rewards": {"judge": "good"}}, '"rewards" "judge" is a string; it must be a number'),
        ({"reward": 1, "rewards": {"reward": 2}}, '"reward" is 1.0 and in "rewards" it is 2.0'),
        ({"task_id": True}, '"task_id" is true or false; it must be a string or a whole number'),
        ({"picture": b"\x89PNG"}, '"info.picture": input was not a valid JSON value'),
    ],
)
def test_a_column_of_another_type_is_named(row: dict, says: str):
    with pytest.raises(RowError) as error:
        reader(lambda row: read_trajectory(row, START, YES))(row)
    assert error.value.reason == "wrong_type"
    assert str(error.value) == says
