"""New games by seed: a furnished room, things laid out in it, and one of the six tasks, always solvable.

There are 100 rooms of each kind, no two furnished alike; every game played in a room has its furniture.
Splits differ in the room and in what is asked for ("clean a fork and put it in a drawer"):

    split    rooms   combinations of task, thing and receptacle
    train    0-79    five in six
    seen     0-79    the others
    unseen   80-99   the others
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, get_args

from bough.worlds.household.game import Game, Goal, Kind, Receptacle, Thing
from bough.worlds.household.goal import CHANGES
from bough.worlds.household.rooms import Room, rooms

Split = Literal["train", "seen", "unseen"]
SPLITS: tuple[Split, ...] = get_args(Split)
ROOMS, TRAINED_ROOMS, HELD_OUT_ONE_IN = 100, 80, 6
LAMP = "desklamp"
APPLIANCES: Mapping[Kind, str] = {
    "pick_clean_then_place_in_recep": "sinkbasin",
    "pick_heat_then_place_in_recep": "microwave",
    "pick_cool_then_place_in_recep": "fridge",
}
SENTENCES: Mapping[Kind, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {o} in {r}.", "put some {o} on {r}."),
    "look_at_obj_in_light": ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    "pick_clean_then_place_in_recep": ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    "pick_heat_then_place_in_recep": ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    "pick_cool_then_place_in_recep": ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    "pick_two_obj_and_place": ("put two {o} in {r}.", "find two {o} and put them in {r}."),
}
# How often a receptacle stands at the spot of the one before it, and which stand on a countertop's.
SHARING = {"cabinet": 0.12, "drawer": 0.12, "stoveburner": 0.25, "shelf": 0.1}
BESIDE_COUNTERTOP = {"toaster": 0.2, "coffeemachine": 0.2}


@dataclass(frozen=True)
class Layout:
    """One room with its furniture. Place 0 is the middle, where nothing stands."""

    room: Room
    receptacles: tuple[Receptacle, ...]

    @cached_property
    def types(self) -> dict[str, list[int]]:
        """The receptacles of each type."""
        types = defaultdict(list)
        for i, receptacle in enumerate(self.receptacles):
            types[receptacle.type].append(i)
        return types

    def homes(self, thing: str, goal: Goal | None = None) -> dict[str, list[int]]:
        """Where a type of thing may lie. What the task asks for does not lie there already."""
        done = goal.target if goal and goal.kind not in CHANGES and goal.object == thing else None
        seen_in = self.room.where[thing]
        return {type_: several for type_, several in self.types.items() if type_ in seen_in and type_ != done}


def generate(kind: Kind, split: Split, rng: random.Random) -> Game:
    """A game of this kind. The same state of `rng` gives the same game in any process."""
    fitting = [room for room in rooms().rooms if APPLIANCES.get(kind, "garbagecan") in room.receptacles]
    numbers = range(TRAINED_ROOMS, ROOMS) if split == "unseen" else range(TRAINED_ROOMS)
    while True:  # a small room may allow no combination of the split; the next one does
        layout = layouts(rng.choice(fitting))[rng.choice(numbers)]
        allowed = [goal for goal in goals(kind, layout) if held_out(goal) == (split != "train")]
        if allowed:
            return _lay_out(layout, rng.choice(allowed), rng)


def held_out(goal: Goal) -> bool:
    """Whether a combination is held out from training."""
    return zlib.crc32(f"{goal.kind} {goal.object} {goal.target}".encode()) % HELD_OUT_ONE_IN == 0


@cache
def layouts(room: Room) -> tuple[Layout, ...]:
    """All distinct rooms of a type."""
    rng, found = random.Random(room.name), dict[tuple[Receptacle, ...], Layout]()  # noqa: S311  no secret
    while len(found) < ROOMS:
        receptacles = _furnish(room, rng)
        found.setdefault(receptacles, Layout(room, receptacles))
    return tuple(found.values())


def _furnish(room: Room, rng: random.Random) -> tuple[Receptacle, ...]:
    openable, furniture = rooms().openable, list[Receptacle]()
    for type_, counts in sorted(room.receptacles.items()):
        (count,) = rng.choices(range(len(counts)), counts)
        for i in range(count, 0, -1):
            place = len(furniture) + 1
            countertops = [r.place for r in furniture if r.type == "countertop"]
            if i < count and rng.random() < SHARING.get(type_, 0):
                place = furniture[-1].place
            elif countertops and rng.random() < BESIDE_COUNTERTOP.get(type_, 0):
                place = rng.choice(countertops)
            furniture.append(Receptacle(f"{type_} {i}", type_, place, rng.random() < openable.get(type_, 0)))
    return tuple(furniture)


def goals(kind: Kind, layout: Layout) -> list[Goal]:
    """The goals of this type that a room allows."""
    known, appliance = rooms(), APPLIANCES.get(kind)
    if appliance and appliance not in layout.types:
        return []
    found = []
    for thing in layout.room.things:
        traits = known.traits[thing]
        if "p" not in traits or (kind in CHANGES and CHANGES[kind][0] not in traits):
            continue
        targets = [r for r in layout.types if r != appliance and thing in known.fits.get(r, ())]
        if kind == "look_at_obj_in_light":
            targets = [LAMP] if LAMP in layout.room.things and layout.homes(LAMP) else []
        found += [goal for r in targets if layout.homes(thing, goal := Goal(kind, thing, r))]
    return found


def _lay_out(layout: Layout, goal: Goal, rng: random.Random) -> Game:
    known, where = rooms(), layout.room.where
    needed = {goal.object: 2 if goal.kind == "pick_two_obj_and_place" else 1}
    if goal.kind == "look_at_obj_in_light":
        needed[goal.target] = 1
    things: list[Thing] = []
    for type_, counts in sorted(layout.room.things.items()):
        homes = layout.homes(type_, goal)
        if not homes:
            continue
        (count,) = rng.choices(range(len(counts)), counts)
        for i in range(max(count, needed.get(type_, 0)), 0, -1):
            (home,) = rng.choices(list(homes), [where[type_][home] for home in homes])
            inside = rng.choice(homes[home])
            place = layout.receptacles[inside].place
            things.append(Thing(f"{type_} {i}", type_, known.traits[type_], place, (inside,)))
    here = {thing.type for thing in things if "p" in thing.traits}
    fits = {type_: known.fits.get(type_, frozenset()) & here for type_ in layout.types}
    sentence = rng.choice(SENTENCES[goal.kind]).format(o=goal.object, r=goal.target)
    return Game(
        task=f"Your task is to: {sentence}",
        goal=goal,
        start=0,
        receptacles=layout.receptacles,
        things=tuple(things),
        fits={receptacle: types for receptacle, types in sorted(fits.items()) if types},
    )
