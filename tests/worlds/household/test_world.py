"""Rules that the recorded games of the real engine (`test_engine.py`) do not reach."""

import random
from dataclasses import replace

import pytest

from bough.worlds.household.engine import best_placed, met
from bough.worlds.household.game import Wording
from bough.worlds.household.generate import generate
from bough.worlds.household.world import World
from tests.worlds.household.flat import (
    APPLE_1,
    KNIFE,
    MUG,
    RECEPTACLES,
    THINGS,
    flat,
    played,
)

ALWAYS = {"help", "inventory", "look"}
GO = {f"go to {receptacle.name}" for receptacle in RECEPTACLES}


def offered(*commands: str, **changes: object) -> set[str]:
    """What can be said after some commands, less what can always be said."""
    return set(played(flat(**changes), *commands).admissible) - ALWAYS


def test_a_knife_slices_what_lies_at_this_place_even_behind_a_door():
    knife = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "slice apple 1 with knife 1" in offered(*knife)
    assert "slice apple 2 with knife 1" in offered(*knife, "go to drawer 1")
    assert not {c for c in offered(*knife, "go to shelf 1") if c.startswith("slice")}
    assert not {c for c in offered("go to shelf 1", "take mug 1 from shelf 1", "go to countertop 1") if "slice" in c}


def test_a_sink_without_a_basin_cleans_too():
    receptacles = tuple(replace(one, type="sink") if one.type == "sinkbasin" else one for one in RECEPTACLES)
    way = ("go to countertop 1", "take apple 1 from countertop 1")
    assert "clean apple 1 with sinkbasin 1" in offered(*way, receptacles=receptacles)


def test_a_butter_knife_is_a_knife_too():
    things = (*THINGS[:KNIFE], replace(THINGS[KNIFE], type="butterknife"), THINGS[MUG])
    fits = {"countertop": frozenset({"butterknife"})}
    way = ("go to countertop 1", "take knife 1 from countertop 1")
    assert "slice apple 1 with knife 1" in offered(*way, things=things, fits=fits)


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


def test_an_edition_may_call_it_put():
    wording = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.")
    assert "put mug 1 in/on shelf 1" in offered("go to shelf 1", "take mug 1 from shelf 1", wording=wording)


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
