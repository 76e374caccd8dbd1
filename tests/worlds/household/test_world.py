import random
from dataclasses import replace

import pytest

from bough.worlds.household.engine import best_placed, met
from bough.worlds.household.game import Receptacle, Thing, Wording
from bough.worlds.household.generate import generate
from bough.worlds.household.world import World
from tests.worlds.household.flat import (
    APPLE_1,
    COUNTERTOP,
    DESK,
    KNIFE,
    LAMP,
    MUG,
    RECEPTACLES,
    SHELF,
    SINK,
    THINGS,
    flat,
    played,
)

ALWAYS = {"help", "inventory", "look"}
GO = {f"go to {receptacle.name}" for receptacle in RECEPTACLES}


def offered(*commands: str, **changes: object) -> set[str]:
    """What can be said after some commands, less what can always be said."""
    return set(played(flat(**changes), *commands).admissible) - ALWAYS


def test_in_the_middle_of_the_room_one_can_only_go_somewhere():
    assert offered() == GO


def test_one_cannot_go_where_one_is_nor_to_a_neighbour_at_the_same_spot():
    here = {"go to countertop 1", "go to sinkbasin 1"}
    assert GO - offered("go to countertop 1") == here
    assert GO - offered("go to sinkbasin 1") == here


def test_things_are_taken_from_every_receptacle_at_hand_but_not_the_lamp():
    assert offered("go to sinkbasin 1") - GO == {
        "examine countertop 1", "examine sinkbasin 1",
        "take apple 1 from countertop 1", "take knife 1 from countertop 1",
    }  # fmt: skip
    assert offered("go to desk 1") - GO == {"examine desk 1", "use desklamp 1"}


def test_what_is_in_a_closed_receptacle_is_out_of_reach():
    closed, opened = offered("go to drawer 1") - GO, offered("go to drawer 1", "open drawer 1") - GO
    assert closed == {"examine drawer 1", "open drawer 1"}
    assert opened == {"examine drawer 1", "close drawer 1", "take apple 2 from drawer 1"}
    assert offered("go to drawer 1", "open drawer 1", "close drawer 1") - GO == closed


def test_a_full_hand_takes_nothing_more_and_examines_what_it_holds():
    assert offered("go to shelf 1", "take mug 1 from shelf 1") - GO == {
        "examine shelf 1", "examine mug 1", "move mug 1 to shelf 1",
    }  # fmt: skip


def test_a_thing_is_put_only_where_its_type_fits_and_the_door_is_open():
    held = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "move knife 1 to drawer 1" not in offered(*held, "go to drawer 1")
    assert "move knife 1 to drawer 1" in offered(*held, "go to drawer 1", "open drawer 1")
    assert not {c for c in offered(*held, "go to fridge 1", "open fridge 1") if c.startswith("move")}


@pytest.mark.parametrize(
    ("receptacle", "command"),
    [
        ("sinkbasin 1", "clean apple 1 with sinkbasin 1"),
        ("microwave 1", "heat apple 1 with microwave 1"),
        ("fridge 1", "cool apple 1 with fridge 1"),
    ],
)
def test_an_appliance_works_on_what_is_held_with_its_door_closed(receptacle: str, command: str):
    way = () if receptacle == "sinkbasin 1" else (f"go to {receptacle}",)
    assert command in offered("go to countertop 1", "take apple 1 from countertop 1", *way)
    plain = tuple(replace(thing, traits="p") for thing in THINGS)
    assert command not in offered("go to countertop 1", "take apple 1 from countertop 1", *way, things=plain)


def test_a_knife_slices_what_lies_at_this_place_even_behind_a_door():
    knife = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "slice apple 1 with knife 1" in offered(*knife)
    assert "slice apple 2 with knife 1" in offered(*knife, "go to drawer 1")
    assert not {c for c in offered(*knife, "go to shelf 1") if c.startswith("slice")}
    assert not {c for c in offered("go to shelf 1", "take mug 1 from shelf 1", "go to countertop 1") if "slice" in c}


def test_a_butter_knife_is_a_knife_too():
    things = (*THINGS[:KNIFE], replace(THINGS[KNIFE], type="butterknife"), THINGS[MUG])
    fits = {"countertop": frozenset({"butterknife"})}
    way = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "slice apple 1 with knife 1" in offered(*way, things=things, fits=fits)


def test_a_lamp_behind_a_closed_door_can_be_used():
    things = (*THINGS[:LAMP], Thing("desklamp 1", "desklamp", "t", 1, (2,)), *THINGS[LAMP + 1 :])
    assert "use desklamp 1" in offered("go to drawer 1", things=things)


def test_heat_and_cold_drive_each_other_out_and_clean_stays():
    world = played(
        flat(),
        "go to countertop 1", "take apple 1 from countertop 1", "clean apple 1 with sinkbasin 1",
        "go to microwave 1", "heat apple 1 with microwave 1",
    ).world  # fmt: skip
    assert [state for state in "CHK" if world.has(APPLE_1, state)] == ["C", "H"]
    world.apply(world.commands()["go to fridge 1"])
    world.apply(world.commands()["cool apple 1 with fridge 1"])
    assert [state for state in "CHK" if world.has(APPLE_1, state)] == ["C", "K"]
    world.apply(world.commands()["go to microwave 1"])
    world.apply(world.commands()["heat apple 1 with microwave 1"])
    assert [state for state in "CHK" if world.has(APPLE_1, state)] == ["C", "H"]


def test_taking_and_putting_move_a_thing():
    engine = played(flat(), "go to shelf 1", "take mug 1 from shelf 1")
    assert (engine.world.held, engine.world.contents[SHELF]) == (MUG, set())
    engine.step("go to desk 1")
    engine.step("move mug 1 to desk 1")
    assert (engine.world.held, engine.world.contents[DESK]) == (None, {LAMP, MUG})


def test_a_thing_in_two_receptacles_leaves_only_the_one_it_is_taken_from():
    things = (*THINGS[:MUG], replace(THINGS[MUG], inside=(SHELF, DESK)))
    world = played(flat(things=things), "go to shelf 1", "take mug 1 from shelf 1").world
    assert world.held == MUG and MUG in world.contents[DESK]


def test_states_and_doors_of_the_start_are_taken_over():
    receptacles = (*RECEPTACLES[:2], Receptacle("drawer 1", "drawer", 1, openable=True, opened=True), *RECEPTACLES[3:])
    world = World(flat(receptacles=receptacles, things=(replace(THINGS[0], traits="pchksK"), *THINGS[1:])))
    assert world.accessible(2) and not world.accessible(3) and world.accessible(COUNTERTOP) and world.has(0, "K")


def test_an_edition_may_call_it_put():
    wording = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.")
    assert "put mug 1 in/on shelf 1" in offered("go to shelf 1", "take mug 1 from shelf 1", wording=wording)


def test_a_sink_beside_a_countertop_is_at_hand_from_there():
    assert played(flat(), "go to countertop 1").world.here == [COUNTERTOP, SINK]


def test_what_stands_nowhere_is_not_named_and_cannot_be_gone_to():
    lost = tuple(
        replace(receptacle, place=-1) if receptacle.name == "shelf 1" else receptacle for receptacle in RECEPTACLES
    )
    assert offered(receptacles=lost) == GO - {"go to shelf 1"}
    assert "shelf 1" not in played(flat(receptacles=lost)).intro


@pytest.mark.parametrize(
    "change",
    [
        lambda world: setattr(world, "place", 99),
        lambda world: setattr(world, "held", 0),
        lambda world: world.opened.symmetric_difference_update({0}),
        lambda world: world.contents[0].symmetric_difference_update({0}),
        lambda world: world.lying[99].add(0),
        lambda world: world.taken.add((0, 0)),
        lambda world: world.states["H"].symmetric_difference_update({0}),
        lambda world: world.states["K"].symmetric_difference_update({0}),
    ],
)
def test_the_digest_is_of_every_part_of_the_state(change):
    before, same, after = World(flat()), World(flat()), World(flat())
    change(after)
    assert before.digest() == same.digest() != after.digest()


def test_what_is_kept_between_steps_equals_what_is_computed_afresh():
    rng, digests = random.Random(0), set()
    world = World(generate("pick_heat_then_place_in_recep", "train", rng))
    for _ in range(200):
        commands = world.commands()
        assert sorted(commands) == sorted(dict(commands)) and len(commands) == len(dict(commands))
        world.apply(commands[rng.choice(sorted(commands))])
        kept = world.digest(), best_placed(world), met(world)
        world.derived.clear()
        assert kept == (world.digest(), best_placed(world), met(world))
        digests.add(kept[0])
    assert len(digests) > 50
