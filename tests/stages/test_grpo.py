from pathlib import Path
from typing import Any

import pytest

from bough.config.training import GRPOConfig
from bough.errors import RowError
from bough.stages.grpo import call_advantages
from bough.types import Group, Message, Task, Trajectory, Turn

HI = [Message(role="user", content="Hi")]


def attempt(reward: float | None, *steps: float | None) -> Trajectory:
    turns = [Turn(reply=Message(role="assistant", content="x"), reward=step) for step in steps]
    return Trajectory(id="a", task=Task(id="t"), start=HI, turns=turns, rewards={"reward": reward})


def advantages(*attempts: Trajectory, **settings: Any) -> list[list[float | None]]:
    config = GRPOConfig(train_file=Path("a"), normalise=False, **settings)
    return call_advantages(Group(task=Task(id="t"), attempts=list(attempts)), config)


def test_every_turn_of_an_attempt_has_its_advantage():
    assert advantages(attempt(1.0, None, None), attempt(0.0, None)) == [[0.5, 0.5], [-0.5]]


def test_an_attempt_that_was_not_scored_is_kept_out_of_the_baseline():
    assert advantages(attempt(1.0, None), attempt(None, None), attempt(0.0, None)) == [[0.5], [None], [-0.5]]


@pytest.mark.parametrize("settings", [{"advantage": "step"}, {"step_level_advantage": True}])
def test_better_steps_are_never_punished_more(settings: dict[str, Any]):
    good, bad = advantages(attempt(1.0, 0.2, 0.6), attempt(0.0, 0.2, 0.6), **settings)
    assert good == pytest.approx([0.25, 0.75])
    assert bad == pytest.approx([-0.75, -0.25])


def test_the_seeds_formula_is_taken_to_the_letter():
    good, bad = advantages(attempt(1.0, 0.2, 0.6), attempt(0.0, 0.2, 0.6), advantage="step", step_formula="seed")
    assert good == pytest.approx([0.25, 0.75])
    assert bad == pytest.approx([-0.25, -0.75])


def test_turns_without_rewards_get_the_outcome_on_the_last():
    assert advantages(attempt(1.0, None, None), attempt(0.0, None, None), advantage="turn") == [
        [0.5, 0.5],
        [-0.5, -0.5],
    ]


def test_a_group_with_nothing_to_tell_apart_is_dropped_with_its_reason():
    with pytest.raises(RowError) as error:
        advantages(attempt(1.0, None), attempt(1.0, None))
    assert error.value.reason == "zero_variance"
