import json
from functools import partial
from pathlib import Path

import pytest

from bough.environments.base import Rule
from bough.environments.mistakes import all_rules
from bough.errors import InputError
from bough.types import Message, Trajectory, Turn
from bough.worlds.household.environment import Household
from bough.worlds.household.mistakes import HouseholdRules, Locations, implausible_location
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


RULES = HouseholdRules(PLACES)
EVERY = all_rules(RULES)


def at(rule: Rule, *turns: Turn | str, **more: object) -> list[int]:
    trajectory = episode("a", *turns, **{"success": False} | more).trajectory
    return [number for number in range(len(trajectory.turns)) if rule(trajectory, number)]


def test_a_text_shows_that_a_command_had_no_effect_where_no_error_is_marked():
    assert RULES.without_effect(turn("fly", "Nothing happens.")) and not RULES.without_effect(turn("look"))
    assert at(EVERY["loop"], turn("go to shelf 1", "You arrive."), turn("go to shelf 1", "Nothing happens.")) == [1]


@pytest.mark.parametrize("claim", ["task succeeded", "Task succeeded.", "the task is completed", "TASK DONE!"])
def test_a_claim_before_the_end_is_premature(claim: str):
    assert at(EVERY["premature_success"], "go", claim, "go") == [1]


def test_a_true_claim_at_the_end_of_a_success_is_none():
    assert at(EVERY["premature_success"], "go", "task succeeded", success=True) == []
    assert at(EVERY["premature_success"], "task succeeded", "go", success=True) == [0]


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
    assert at(EVERY["wasted_step"], before, after) == [1]
    assert at(EVERY["wasted_step"], before, "look", after) == [], "only the step just before"
    assert at(EVERY["wasted_step"], before, turn(after, error="invalid_action")) == [], "nothing was undone"


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
    assert at(EVERY["wasted_step"], before, after) == []


def searched(*turns: Turn | str) -> list[int]:
    return at(partial(implausible_location, locations=PLACES), *turns, start=ROOM)


def test_a_search_is_implausible_where_the_thing_hardly_ever_is():
    assert searched("go to bathtub 1", "go to fridge 1") == [0]
    assert searched("go to bin 1") == []
    assert searched(turn("go to fridge 1", "In it, you see a apple 2."), "go to bathtub 1") == []
    assert searched(turn("go to fridge 1", "In it, you see a egg 2."), "go to bathtub 1") == [1]
    assert searched("go to fridge 1", "go to countertop 1", "go to bathtub 1") == []
    assert at(partial(implausible_location, locations=PLACES), "go to bathtub 1") == []
    egg = [Message(role="user", content="a bathtub 1, a fridge 1. Your task is to: find an egg")]
    assert at(partial(implausible_location, locations=PLACES), "go to bathtub 1", start=egg) == []
    likely = Household.mistake_rules().locations.likely
    assert "fridge" in likely["apple"] and "toilet" not in likely["apple"]


def visit(task: str, *looks: tuple[str, str], success: bool = True) -> Trajectory:
    return episode(task, *(turn(action, seen) for action, seen in looks), task=task, success=success).trajectory


def shelves(count: int, seen: str, first: int = 0) -> list[Trajectory]:
    return [
        visit(f"t{number}", ("go to shelf 1", f"You arrive at shelf 1. On the shelf 1, you see {seen}."))
        for number in range(first, first + count)
    ]


def test_a_place_is_implausible_once_enough_of_its_kind_were_seen_without_the_thing():
    apple = visit(
        "k", ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a egg 2.")
    )
    # 18 empty shelves: 1/20 is not below 0.05; 19: 1/21 is.
    assert not Locations.learn([apple, *shelves(18, "nothing")], rare=0.05).implausible("apple", "shelf")
    learnt = Locations.learn([apple, *shelves(19, "a vase 1")], rare=0.05)
    assert learnt.implausible("apple", "shelf") and not learnt.implausible("apple", "fridge")
    assert not learnt.implausible("vase", "shelf") and learnt.likely.keys() == {"apple", "egg", "vase"}


def test_a_place_is_judged_by_how_often_the_thing_lay_there():
    # 2/41 is below 0.05, 2/40 is not.
    once = shelves(1, "a apple 1", first=100)
    assert not Locations.learn([*once, *shelves(37, "nothing")], rare=0.05).implausible("apple", "shelf")
    assert Locations.learn([*once, *shelves(38, "nothing")], rare=0.05).implausible("apple", "shelf")
    learnt = Locations.learn(shelves(50, "a vase 1"), rare=0.05)
    assert not learnt.implausible("apple", "shelf") and not learnt.implausible("vase", "desk")
    apple = visit("k", ("examine table 1", "On the table 1, you see a apple 1."))
    assert not Locations.learn([apple, *[shelves(1, "nothing")[0]] * 100], rare=0.05).implausible("apple", "shelf")


def test_what_the_agent_put_there_itself_and_later_looks_do_not_count():
    looks = [
        ("move apple 1 to shelf 1", "You move the apple 1 to the shelf 1."),
        ("go to shelf 1", "On the shelf 1, you see a apple 1."),
        ("go to desk 1", "On the desk 1, you see a pen 1."),
        ("go to desk 1", "On the desk 1, you see a pen 1, and a cd 1."),
    ]
    assert RULES.learn([visit("t", *looks)], RULES.Options()).locations.likely.keys() == {"pen"}


def test_places_can_be_given_and_then_all_others_are_implausible(tmp_path: Path):
    file = tmp_path / "places.json"
    file.write_text(json.dumps({"Apple": ["Fridge"]}))
    given = RULES.learn([], RULES.Options(locations=file)).locations
    assert given.implausible("apple", "bathtub") and not given.implausible("apple", "fridge")
    assert not given.implausible("soap", "fridge")
    for text in ("{", "[]", '{"apple": "fridge"}'):
        file.write_text(text)
        with pytest.raises(InputError, match=r"places\.json: must be JSON like"):
            Locations.read(file)
    for path in (tmp_path / "missing.json", Path("/dev/null")):
        with pytest.raises(InputError, match="cannot be read"):
            Locations.read(path)
