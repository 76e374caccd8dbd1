"""Statistics of the rooms of the official games, from which new games are generated.

Learned from the 140 official valid_seen games: how many receptacles of each type a room
has (`counts[n]` games had n of them), how many things of each type and where they lie,
what things can be done with, and which types of receptacles take them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


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
    return Rooms(
        rooms=tuple(
            Room(
                name,
                room["receptacles"],
                {thing: seen["counts"] for thing, seen in room["things"].items()},
                {thing: seen["in"] for thing, seen in room["things"].items()},
            )
            for name, room in table["rooms"].items()
        ),
        traits=table["traits"],
        fits={receptacle: frozenset(things) for receptacle, things in table["fits"].items()},
        openable=table["openable"],
    )


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
