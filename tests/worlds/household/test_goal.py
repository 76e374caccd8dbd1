from dataclasses import replace

import pytest

from bough.worlds.household.engine import met
from bough.worlds.household.game import Kind, Receptacle
from tests.worlds.household.flat import APPLE_2, DESK, LAMP, MUG, RECEPTACLES, SHELF, THINGS, flat, played

TAKE = ("go to countertop 1", "take apple 1 from countertop 1")
TO_SHELF = ("go to shelf 1", "move apple 1 to shelf 1")


def won(kind: Kind, *commands: str, thing: str = "apple", target: str = "shelf", **changes: object) -> bool:
    return met(played(flat(kind, thing, target, **changes), *commands).world)


def test_a_thing_of_the_type_in_a_receptacle_of_the_type_wins():
    assert not won("pick_and_place_simple")
    assert not won("pick_and_place_simple", *TAKE, "go to shelf 1")
    assert won("pick_and_place_simple", *TAKE, *TO_SHELF)
    assert not won("pick_and_place_simple", *TAKE, "move apple 1 to sinkbasin 1")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("pick_clean_then_place_in_recep", ("clean apple 1 with sinkbasin 1",)),
        ("pick_heat_then_place_in_recep", ("go to microwave 1", "heat apple 1 with microwave 1")),
        ("pick_cool_then_place_in_recep", ("go to fridge 1", "cool apple 1 with fridge 1")),
    ],
)
def test_a_thing_must_be_changed_before_it_counts(kind: Kind, change: tuple[str, ...]):
    assert not won(kind, *TAKE, *TO_SHELF)
    assert won(kind, *TAKE, *change, *TO_SHELF)
    assert not won(kind, *TAKE, *change)


def test_a_state_without_the_trait_does_not_count():
    def things(traits: str) -> tuple[object, ...]:
        return (replace(THINGS[APPLE_2], traits=traits, inside=(SHELF,)), *THINGS[1:])

    assert won("pick_cool_then_place_in_recep", things=things("pkK"))
    assert not won("pick_cool_then_place_in_recep", things=things("pK"))


def test_two_things_must_lie_in_the_same_receptacle():
    second = (*RECEPTACLES, Receptacle("shelf 2", "shelf", 7))
    other = ("go to drawer 1", "open drawer 1", "take apple 2 from drawer 1")
    kind: Kind = "pick_two_obj_and_place"
    assert not won(kind, *TAKE, *TO_SHELF)
    assert won(kind, *TAKE, *TO_SHELF, *other, "go to shelf 1", "move apple 2 to shelf 1")
    assert not won(kind, *TAKE, *TO_SHELF, *other, "go to shelf 2", "move apple 2 to shelf 2", receptacles=second)


def test_the_light_task_wants_the_thing_in_hand_beside_a_lamp_that_was_used():
    kind: Kind = "look_at_obj_in_light"
    take, lamp = ("go to shelf 1", "take mug 1 from shelf 1"), ("go to desk 1", "use desklamp 1")
    goal = {"thing": "mug", "target": "desklamp"}
    assert won(kind, *take, *lamp, **goal)
    assert won(kind, *lamp, *take, "go to desk 1", **goal)
    assert not won(kind, *take, "go to desk 1", **goal)
    assert not won(kind, *lamp, *take, **goal)
    assert not won(kind, *take, *lamp[:1], "move mug 1 to desk 1", "use desklamp 1", **goal)
    assert not won(kind, *TAKE, *lamp, **goal)


def test_a_lamp_without_a_switch_gives_no_light():
    def things(traits: str) -> tuple[object, ...]:
        return (*THINGS[:LAMP], replace(THINGS[LAMP], traits=traits), *THINGS[LAMP + 1 :])

    way = ("go to shelf 1", "take mug 1 from shelf 1", "go to desk 1")
    assert won("look_at_obj_in_light", *way, thing="mug", target="desklamp", things=things("tT"))
    assert not won("look_at_obj_in_light", *way, thing="mug", target="desklamp", things=things("T"))


def test_a_used_thing_that_is_no_lamp_gives_no_light():
    things = (*THINGS[:MUG], replace(THINGS[MUG], traits="pt", inside=(DESK,)))
    way = ("go to countertop 1", "take apple 1 from countertop 1", "go to desk 1", "use mug 1")
    assert not won("look_at_obj_in_light", *way, target="desklamp", things=things)
