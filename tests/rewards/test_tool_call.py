import pytest

from bough.rewards.outcome import outcome
from bough.rewards.tool_call import tool_call
from tests.rewards.records import trajectory, turn

WRONG = {"outcome": -1.0}


@pytest.mark.parametrize(("calls", "score"), [(0, -1.0), (1, -0.9), (2, -0.8), (3, -0.7), (4, -0.6), (5, -0.6)])
def test_a_wrong_answer_is_less_wrong_with_calls_up_to_four(calls: int, score: float):
    wrong = trajectory(*[turn(tool=True)] * calls, turn(), success=False, rewards=WRONG)
    assert outcome(wrong) + tool_call(wrong) == pytest.approx(score)


def test_a_right_answer_earns_nothing_by_calls():
    assert tool_call(trajectory(turn(tool=True), success=True, rewards={"outcome": 1.0})) == 0.0


def test_turns_without_a_tools_answer_and_calls_that_failed_earn_nothing():
    wrong = trajectory(turn(), turn(tool=True, error="tool_misuse"), turn(tool=True), success=False, rewards=WRONG)
    assert tool_call(wrong) == pytest.approx(0.1)


def test_a_score_above_the_ceiling_is_not_pulled_down():
    assert tool_call(trajectory(turn(tool=True), success=False, rewards={"outcome": -0.5})) == 0.0


def test_a_failure_of_0_can_be_counted_as_minus_1():
    failed = trajectory(turn(tool=True), success=False)
    assert tool_call(failed) == 0.0 and tool_call(failed, failure=-1.0) == pytest.approx(0.1)


def test_an_unknown_outcome_has_none():
    assert tool_call(trajectory(turn(tool=True))) is None
