"""Plausible places: in which types of receptacles a type of thing is found at all.

Learned from what episodes saw when they first looked into a receptacle, or given as a
JSON file: {"apple": ["countertop", "fridge"], …}.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_json

from bough.disk import read_json
from bough.errors import InputError
from bough.types import Trajectory, Turn

# The length of a list is bounded: otherwise a text of many unfinished lists takes quadratic time.
_LOOK = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^.]{0,2000})\.")
_THING = re.compile(r"\b([a-z]\w*) \d+")
_PUT = re.compile(r"(?:move|put) \w+ \d+ (?:to|in/on|in|on) (\w+ \d+)")


@dataclass(frozen=True)
class Locations:
    """The `likely` places of each thing. Only places in `judged` can be implausible; None means all."""

    likely: Mapping[str, frozenset[str]]
    judged: frozenset[str] | None = None

    @classmethod
    def learn(cls, trajectories: Iterable[Trajectory], rare: float) -> Locations:
        """A place is likely for a thing unless fewer than `rare` of such places are estimated to have it.

        The estimate is (found + 1) / (looked + 2), so a type of place that was seen only a
        few times is never implausible.
        """
        looks = {look for trajectory in trajectories for look in _looks(trajectory)}
        looked = Counter(place for _, _, place, _ in looks)
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for _, _, place, things in looks:
            for thing in things:
                found[thing][place] += 1
        likely = {
            thing: frozenset(place for place, count in looked.items() if (places[place] + 1) / (count + 2) >= rare)
            for thing, places in found.items()
        }
        return cls(likely, frozenset(looked))

    @classmethod
    def read(cls, path: Path) -> Locations:
        """The places that a file lists."""
        try:
            given = read_json(path)
        except OSError as error:
            raise InputError(f"locations {path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"locations {path}: not JSON: {error}") from None
        if not isinstance(given, dict) or not all(
            isinstance(places, list) and all(isinstance(place, str) for place in places) for places in given.values()
        ):
            raise InputError(f'locations {path}: must be like {{"apple": ["countertop", "fridge"]}}')
        return cls({thing.lower(): frozenset(map(str.lower, places)) for thing, places in given.items()})

    def implausible(self, thing: str, place: str) -> bool:
        """Whether `thing` is hardly ever found in such a place, as far as is known."""
        known = thing in self.likely and (self.judged is None or place in self.judged)
        return known and place not in self.likely[thing]

    @property
    def things(self) -> Set[str]:
        return self.likely.keys()


def type_of(name: str) -> str:
    """ "shelf 2" is a shelf."""
    return name.split(" ")[0]


def names(text: str) -> list[str]:
    """The numbered things that a text names: "shelf 2", …"""
    return [match[0] for match in _THING.finditer(text)]


def _looks(trajectory: Trajectory) -> Iterator[tuple[bytes, str, str, frozenset[str]]]:
    """What each place contained when it was first looked into; places that the agent filled itself are left out."""
    task = trajectory.task
    room = to_json((task.environment, task.id, task.seed, trajectory.start, trajectory.tools))
    done: set[str] = set()
    for turn in trajectory.turns:
        done |= set(_PUT.findall(turn.action or ""))
        for name, things in _contents(turn):
            if name not in done:
                done.add(name)
                yield room, name, type_of(name), frozenset(map(type_of, names(things)))


def _contents(turn: Turn) -> Iterator[tuple[str, str]]:
    for message in turn.observation:
        for on, inside, things in _LOOK.findall(message.content):
            yield on or inside, things
