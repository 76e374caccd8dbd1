import pytest

from bough.curation.failure_modes import (
    Mistake,
    Rule,
    implausible_location,
    invalid_action,
    loop,
    mistakes,
    premature_success,
    rules,
    wasted_step,
)
from bough.curation.locations import Locations
from bough.types import Message, Trajectory, Turn
from tests.curation.records import episode, turn

PLACES = Locations(
    {"apple": frozenset({"fridge", "countertop"})}, frozenset({"fridge", "countertop", "bathtub", "bin"})
)
ROOM = [
    Message(
        role="user",
        content="You see a bathtub 1, a bin 1, a countertop 1, and a fridge 1.\n\nYour task is to: put apple in bin.",
    )
]


def at(rule: Rule, *turns: Turn | str, **more: object) -> list[int]:
    trajectory = episode("a", *turns, **{"success": False} | more).trajectory
    return [number for number in range(len(trajectory.turns)) if rule(trajectory, number)]


def test_the_second_of_two_equal_actions_with_the_same_result_is_a_loop():
    assert at(loop, "look", "look", "look", "go") == [1, 2]


def test_another_result_or_progress_makes_it_no_loop():
    assert at(loop, turn("next", "page 1"), turn("next", "page 2")) == []
    assert at(loop, turn("pump", progress=0.1), turn("pump", progress=0.2), turn("pump", progress=0.2)) == [2]


def test_repeating_what_had_no_effect_the_second_time_is_a_loop():
    assert at(loop, turn("go to shelf 1", "You arrive."), turn("go to shelf 1", "Nothing happens.")) == [1]
    assert at(loop, turn("x", "A."), turn("x", "B.", error="invalid_action")) == [1]


def test_a_cycle_is_a_loop_when_it_closes_for_the_second_time():
    assert at(loop, "a", "b", "a", "b", "a") == [3, 4]
    assert at(loop, "a", "b", "c", "a", "b", "c") == [5]
    assert at(loop, *"abcdeabcde") == [], "longer cycles may be a search that goes round"


def test_coming_back_with_something_else_in_hand_is_no_loop():
    assert at(loop, "go to fridge 1", "go to shelf 1", "take apple 1 from shelf 1", "go to fridge 1") == []


@pytest.mark.parametrize("claim", ["task succeeded", "Task succeeded.", "the task is completed", "TASK DONE!"])
def test_a_claim_before_the_end_is_premature(claim: str):
    assert at(premature_success, "go", claim, "go") == [1]


def test_the_worlds_own_word_for_it_counts():
    assert at(premature_success, "go", "I have finished", stop="premature_success") == [1]
    assert at(premature_success, "go", "I have finished", stop="max_turns") == []


def test_a_true_claim_at_the_end_of_a_success_is_none():
    assert at(premature_success, "go", "task succeeded", success=True) == []
    assert at(premature_success, "task succeeded", "go", success=True) == [0]


def test_what_the_world_could_not_act_on_is_invalid():
    turns = ["go", turn("fly", error="invalid_action"), turn("?", error="malformed"), turn("x", "Nothing happens.")]
    assert at(invalid_action, *turns) == [1, 2, 3]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("take mug 1 from desk 1", "move mug 1 to desk 1"),
        ("take mug 1 from desk 1", "put mug 1 in/on desk 1"),
        ("move mug 1 to desk 1", "take mug 1 from desk 1"),
        ("open drawer 1", "close drawer 1"),
        ("close drawer 1", "open drawer 1"),
    ],
)
def test_undoing_the_step_before_is_wasted(before: str, after: str):
    assert at(wasted_step, before, after) == [1]
    assert at(wasted_step, before, "look", after) == [], "only the step just before"
    assert at(wasted_step, before, turn(after, error="invalid_action")) == [], "nothing was undone"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("take mug 1 from desk 1", "move mug 1 to desk 2"),
        ("take mug 1 from desk 1", "move mug 2 to desk 1"),
        ("open drawer 1", "close drawer 2"),
        ("open drawer 1", "open drawer 1"),
        ("go to desk 1", "go to desk 2"),
    ],
)
def test_going_on_is_not_wasted(before: str, after: str):
    assert at(wasted_step, before, after) == []


def searched(*turns: Turn | str) -> list[int]:
    return at(lambda trajectory, turn: implausible_location(trajectory, turn, PLACES), *turns, start=ROOM)


def test_searching_where_the_thing_hardly_ever_is_is_implausible():
    assert searched("go to bathtub 1", "go to fridge 1") == [0]


def test_the_place_that_the_task_names_is_not():
    assert searched("go to bin 1") == []


def test_nobody_searches_any_more_once_the_thing_was_seen():
    assert searched(turn("go to fridge 1", "In it, you see a apple 2."), "go to bathtub 1") == []
    assert searched(turn("go to fridge 1", "In it, you see a egg 2."), "go to bathtub 1") == [1]


def test_when_every_likely_place_was_visited_any_other_will_do():
    assert searched("go to fridge 1", "go to countertop 1", "go to bathtub 1") == []


def test_without_a_task_that_names_a_known_thing_nothing_is_implausible():
    assert at(lambda trajectory, turn: implausible_location(trajectory, turn, PLACES), "go to bathtub 1") == []
    egg = [Message(role="user", content="a bathtub 1, a fridge 1. Your task is to: find an egg")]
    assert at(lambda t, turn: implausible_location(t, turn, PLACES), "go to bathtub 1", start=egg) == []


def test_a_turn_is_blamed_for_one_thing_the_most_telling():
    trajectory: Trajectory = episode(
        "a", turn("fly", error="invalid_action"), turn("fly", error="invalid_action"), "go to bathtub 1",
        turn("task succeeded", "Nothing happens."), start=ROOM, success=False,
    ).trajectory  # fmt: skip
    every = rules(["loop", "premature_success", "implausible_location", "invalid_action", "wasted_step"], PLACES)
    assert list(mistakes(trajectory, every)) == [
        Mistake(0, "invalid_action"), Mistake(1, "loop"), Mistake(2, "implausible_location"),
        Mistake(3, "premature_success"),
    ]  # fmt: skip
    assert [m.turn for m in mistakes(trajectory, rules(["invalid_action"], PLACES))] == [0, 1, 3]
