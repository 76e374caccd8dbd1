import pytest

from bough.online.schedule import Ages
from bough.types import Call, Group, Message, Task, Trajectory, Turn


def call(policy: str | None) -> Call:
    return Call(prompt_ids=[1], completion_ids=[2], policy=policy)


def group(*policies: str) -> Group:
    task = Task(id="t")
    turns = [Turn(reply=Message(role="assistant", content="a"), call=call(policy)) for policy in policies]
    return Group(task=task, attempts=[Trajectory(id="t#0", task=task, start=[Message(role="user")], turns=turns)])


@pytest.mark.parametrize(
    ("policy", "age"),
    [("step-10", 0), ("step-11", 0), ("step-9", 1), ("step-6..step-10", 2), ("step-0", 5), (None, 0), ("other", 0)],
)
def test_an_age_counts_batches_from_the_weights_of_the_first_token(policy: str | None, age: int):
    assert Ages(batch=5, updates=2, max_staleness=1).of(call(policy)) == age


def test_only_calls_that_are_too_old_are_left_out():
    played = group("step-2", "step-3", "step-4..step-5", "step-5")
    learnt, num_stale = Ages(batch=5, updates=1, max_staleness=1).fresh(played)
    assert [turn.trained for turn in learnt.attempts[0].turns] == [False, False, True, True] and num_stale == 2
    assert all(turn.trained for turn in played.attempts[0].turns)


def test_staleness_is_measured_over_calls():
    ages = Ages(batch=5, updates=1, max_staleness=3)
    assert ages.metrics([call("step-5"), call("step-3"), call("step-4")]) == {"staleness_mean": 1.0, "staleness_max": 2}
    assert ages.metrics([]) == {}
