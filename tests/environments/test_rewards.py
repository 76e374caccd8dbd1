import pytest

from bough.environments.rewards import (
    bounds_of,
    format,
    mistakes,
    outcome,
    overlong,
    progress,
    steps,
    tool_call,
)
from bough.environments.rubric import REWARDS
from bough.types import Message
from tests.environments.records import trajectory, turn


def test_the_recorded_outcome_counts_and_else_success():
    assert outcome(trajectory(success=True, rewards={"outcome": 0.4})) == 0.4
    assert outcome(trajectory(success=True, rewards={"outcome": None})) == 1.0, "it was not scored"
    assert [outcome(trajectory(success=success)) for success in (True, False, None)] == [1.0, 0.0, None]


def test_a_failure_can_be_worth_less_than_nothing_unless_it_has_gained_something():
    assert [outcome(trajectory(success=one), failure=-1.0) for one in (True, False, None)] == [1.0, -1.0, None]
    assert outcome(trajectory(success=False, rewards={"outcome": 0.5}), failure=-1.0) == 0.5


def test_the_last_known_progress_counts_not_the_highest_and_a_success_is_whole():
    assert progress(trajectory(turn(progress=0.8), turn(progress=0.6), turn(), success=False)) == 0.6
    assert progress(trajectory(turn(progress=0.8), success=True)) == 1.0
    assert progress(trajectory(turn(progress=0.0), success=False)) == 0.0
    assert progress(trajectory(turn(), success=False)) is None, "no progress is told"


@pytest.mark.parametrize(("turns", "reward"), [(1, 1.0), (2, 0.9), (6, 0.5), (11, 0.0), (20, 0.0)])
def test_each_further_turn_of_a_success_costs_the_same(turns: int, reward: float):
    assert steps(trajectory(*[turn()] * turns, success=True), max_turns=10) == pytest.approx(reward)


def test_a_short_failure_earns_nothing():
    assert steps(trajectory(turn(), success=False)) == 0.0
    assert steps(trajectory(*[turn()] * 26, success=True)) == 0.5
    assert steps(trajectory(turn())) is None


def test_the_share_of_replies_in_the_agreed_form():
    turns = [turn(), turn(error="malformed"), turn(error="tool_misuse"), turn(error="invalid_action"), turn()]
    assert format(trajectory(*turns)) == 0.6 and format(trajectory()) is None


WRONG = {"outcome": -1.0}


@pytest.mark.parametrize(("calls", "score"), [(0, -1.0), (1, -0.9), (2, -0.8), (3, -0.7), (4, -0.6), (5, -0.6)])
def test_a_wrong_answer_is_less_wrong_with_calls_up_to_four(calls: int, score: float):
    wrong = trajectory(*[turn(tool=True)] * calls, turn(), success=False, rewards=WRONG)
    assert outcome(wrong) + tool_call(wrong) == pytest.approx(score)


def test_calls_earn_nothing_where_they_failed_or_the_answer_is_not_wrong_enough():
    wrong = trajectory(turn(), turn(tool=True, error="tool_misuse"), turn(tool=True), success=False, rewards=WRONG)
    assert tool_call(wrong) == pytest.approx(0.1), "for the last turn alone"
    assert tool_call(trajectory(turn(tool=True), success=True, rewards={"outcome": 1.0})) == 0.0
    assert tool_call(trajectory(turn(tool=True), success=False, rewards={"outcome": -0.5})) == 0.0, "not pulled down"
    assert tool_call(trajectory(turn(tool=True))) is None
    failed = trajectory(turn(tool=True), success=False)
    assert tool_call(failed) == 0.0 and tool_call(failed, failure=-1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("tokens", "reward"), [(100, 0.0), (7480, 0.0), (8980, -0.5), (10480, -1.0), (20000, -1.0)])
def test_the_last_3000_tokens_before_the_limit_cost_more_and_more(tokens: int, reward: float):
    assert overlong(trajectory(turn(tokens=tokens))) == pytest.approx(reward)


def test_tokens_of_all_calls_count_together_or_else_the_count_of_the_episode():
    assert overlong(trajectory(turn(tokens=6), turn(tokens=3)), max_length=10, buffer=4) == pytest.approx(-0.75)
    assert overlong(trajectory(turn(tokens=10)), max_length=10, buffer=4, factor=0.5) == -0.5
    for turns in ([turn()], [turn(tokens=1), turn()]):
        counted = trajectory(*turns, info={"completion_tokens": 9})
        assert overlong(counted, max_length=10, buffer=4) == pytest.approx(-0.75)


@pytest.mark.parametrize("info", [{}, {"completion_tokens": 0}, {"completion_tokens": "many"}])
def test_unknown_lengths_have_none(info: dict[str, object]):
    assert overlong(trajectory(turn(), info=info)) is None


@pytest.mark.parametrize(
    ("environment", "reasons", "value"),
    [
        ("household", [], -0.5),  # both searches: the second is a loop as well, but a turn is blamed once
        ("household", ["implausible_location"], -0.5),
        ("household", ["loop"], -0.25),
        ("household", ["premature_success"], 0.0),
        (None, [], -0.25),  # only what needs no texts
        ("my.py:World", [], -0.25),
    ],
)
def test_mistakes_cost_something_each(environment: str | None, reasons: list[str], value: float):
    said = {"role": "user", "content": "You see a toilet 1, a fridge 1. Your task is to: put an apple in microwave."}
    one = trajectory(*(turn(action=action) for action in ["go to toilet 1"] * 2 + ["go to fridge 1"]), success=True)
    task = one.task.model_copy(update={"environment": environment})
    again = one.model_copy(update={"task": task, "start": [Message.model_validate(said)]})
    assert mistakes(again, reasons=reasons) == value


def test_mistakes_cost_at_most_1():
    assert mistakes(trajectory(*(turn(error="malformed") for _ in range(9)), success=False)) == -1.0
    assert mistakes(trajectory(turn(error="malformed"), success=False), each=0.4) == -0.4


def test_shares_among_our_own_rewards_are_declared():
    declared = {name: bounds_of(reward) for name, reward in REWARDS.items() if bounds_of(reward)}
    assert declared == dict.fromkeys(["progress", "steps", "format", "judge"], (0.0, 1.0)) | {"mistakes": (-1.0, 0.0)}
