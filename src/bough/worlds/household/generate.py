"""New games by seed: a furnished room, things laid out in it, and one of the six tasks, always solvable.

There are 100 rooms of each kind, no two furnished alike; every game played in a room has its furniture.
Splits differ in the room and in what is asked for ("clean a fork and put it in a drawer"):

    split    rooms   combinations of task, thing and receptacle
    train    0-79    five in six
    seen     0-79    the others
    unseen   80-99   the others
"""

from __future__ import annotations

import json
import random
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from bough.errors import InputError, did_you_mean
from bough.worlds.household import game as game_files
from bough.worlds.household.engine import CHANGES
from bough.worlds.household.game import Game, Goal, Kind, Receptacle, Thing

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
    openable = rooms().openable
    while len(found) < ROOMS:
        furniture = list[Receptacle]()
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
        found.setdefault(tuple(furniture), Layout(room, tuple(furniture)))
    return tuple(found.values())


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


# Statistics of the rooms of the official games, from which new games are generated.
# Learned from the 140 official valid_seen games: how many receptacles of each type a room has (`counts[n]` games had
# n of them), how many things of each type and where they lie, what things can be done with, and which types of
# receptacles take them.


@dataclass(frozen=True, eq=False)
class Room:
    """A type of room. `where` has, for each thing, how often it was seen in each type of receptacle."""

    name: str
    receptacles: Mapping[str, list[int]]
    things: Mapping[str, list[int]]
    where: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Rooms:
    """All statistics. `openable` is the share of receptacles of a type that have a door."""

    rooms: tuple[Room, ...]
    traits: Mapping[str, str]
    fits: Mapping[str, frozenset[str]]
    openable: Mapping[str, float]


@cache
def rooms() -> Rooms:
    """The table, read once."""
    table = json.loads(files(__package__).joinpath("rooms.json").read_text(encoding="utf-8"))
    found = []
    for name, room in table["rooms"].items():
        counts = {thing: seen["counts"] for thing, seen in room["things"].items()}
        found.append(Room(name, room["receptacles"], counts, {thing: room["things"][thing]["in"] for thing in counts}))
    fits = {receptacle: frozenset(things) for receptacle, things in table["fits"].items()}
    return Rooms(tuple(found), table["traits"], fits, table["openable"])


@cache
def likely(thing: str, receptacle: str) -> float:
    """The share of a type of thing that was seen in a type of receptacle, over all rooms."""
    seen = [room.where[thing] for room in rooms().rooms if thing in room.where]
    total = sum(sum(where.values()) for where in seen)
    return sum(where.get(receptacle, 0) for where in seen) / total if total else 0.0


@cache
def whereabouts() -> dict[str, frozenset[str]]:
    """The types of receptacles in which each type of thing was seen at all."""
    seen: dict[str, set[str]] = {}
    for room in rooms().rooms:
        for thing, where in room.where.items():
            seen.setdefault(thing, set()).update(where)
    return {thing: frozenset(where) for thing, where in seen.items()}


# Sources of games: an endless generator, or the official games of a folder.

# The official folders of our splits.
FOLDERS: dict[Split, str] = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}


def generated(kinds: Sequence[Kind], split: str, seed: int) -> Iterator[tuple[str, Game]]:
    """An endless series of games with their names, the task types in turn."""
    known = _split(split)
    for number in count():
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"{known} {seed} {number} {kind}")  # noqa: S311  no secret
        yield f"{known}-{seed}-{number}-{kind}", generate(kind, known, rng)


def official(source: Path, kinds: Sequence[Kind], split: str, rng: random.Random) -> Iterator[tuple[str, Game]]:
    """The games of a file or folder, shuffled; of a folder with the official splits in it, those of one split."""
    if source.is_file():
        yield "/".join(source.resolve().parent.parts[-2:]), game_files.read(source)
        return
    folder = source / FOLDERS[_split(split)]
    if not folder.is_dir():
        if any((source / name).is_dir() for name in FOLDERS.values()):
            raise InputError(f"{source}: there is no folder {folder.name}, which the split {split} needs")
        folder = source
    paths = sorted(folder.rglob(game_files.FILE_NAME))
    if not paths:
        raise InputError(f"{source}: there is no {game_files.FILE_NAME} in it")
    rng.shuffle(paths)
    for path in paths:
        # Some files are marked as not solvable; the original leaves them out too.
        if game_files.load(path).get("solvable", True) and (game := game_files.read(path)).goal.kind in kinds:
            yield str(path.parent.relative_to(folder)), game


def _split(name: str) -> Split:
    for split in SPLITS:
        if name in (split, FOLDERS[split]):
            return split
    raise InputError(f"there is no split {name!r}{did_you_mean(name, SPLITS)}")
