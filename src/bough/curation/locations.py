"""Where things are: in which kinds of places a kind of thing is found at all.

Learnt from what episodes in a household saw when they first looked into a place, or
given as a JSON file: {"apple": ["countertop", "fridge"], …}.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from bough.curation.posterior import Rate
from bough.curation.states import task_key
from bough.disk import read_json
from bough.errors import InputError
from bough.types import Message, Trajectory, Turn

# A list has an end: without one, a text that only begins with many lists would be looked through over and over.
_LOOK = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^.]{0,2000})\.")
_THING = re.compile(r"\b([a-z]\w*) \d+")
_PUT = re.compile(r"(?:move|put) \w+ \d+ (?:to|in/on|in|on) (\w+ \d+)")


@dataclass(frozen=True)
class Locations:
    """`likely` places of each thing. Only places in `judged` are called implausible; None judges all."""

    likely: dict[str, frozenset[str]]
    judged: frozenset[str] | None = None

    @classmethod
    def learn(cls, trajectories: Iterable[Trajectory], rare: float) -> Locations:
        """A place is likely for a thing unless, by all that was seen, fewer than `rare` such places have it.

        The estimate is (found + 1) / (looked + 2): a kind of place that was seen a few
        times only is never called implausible.
        """
        looks = {look for trajectory in trajectories for look in _looks(trajectory)}
        looked = Counter(place for _, _, place, _ in looks)
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for _, _, place, things in looks:
            for thing in things:
                found[thing][place] += 1
        likely = {
            thing: frozenset(place for place, count in looked.items() if Rate(places[place], count).mean >= rare)
            for thing, places in found.items()
        }
        return cls(likely, frozenset(looked))

    @classmethod
    def read(cls, path: Path) -> Locations:
        """The places that a file gives."""
        try:
            given = read_json(path)
        except OSError as error:
            raise InputError(f"--locations {path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"--locations {path}: not JSON: {error}") from None
        if not isinstance(given, dict) or not all(
            isinstance(places, list) and all(isinstance(place, str) for place in places) for places in given.values()
        ):
            raise InputError(f'--locations {path}: it must be like {{"apple": ["countertop", "fridge"]}}')
        return cls({thing.lower(): frozenset(map(str.lower, places)) for thing, places in given.items()})

    def implausible(self, thing: str, place: str) -> bool:
        """Whether `thing` is hardly ever found in such a place, as far as is known."""
        known = thing in self.likely and (self.judged is None or place in self.judged)
        return known and place not in self.likely[thing]

    @property
    def things(self) -> Set[str]:
        return self.likely.keys()


def kind(name: str) -> str:
    """ "shelf 2" is a shelf."""
    return name.split(" ")[0]


def names(text: str) -> list[str]:
    """The numbered things that a text names: "shelf 2", …"""
    return [match[0] for match in _THING.finditer(text)]


def _looks(trajectory: Trajectory) -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """What was in each place when it was first looked into; a place the agent filled itself tells nothing."""
    task = task_key(trajectory)
    done: set[str] = set()
    for turn in trajectory.turns:
        done |= set(_PUT.findall(turn.action or ""))
        for name, things in _contents(turn):
            if name not in done:
                done.add(name)
                yield task, name, kind(name), frozenset(map(kind, names(things)))


def _contents(turn: Turn) -> Iterator[tuple[str, str]]:
    said: list[Message] = turn.observation
    for message in said:
        for on, inside, things in _LOOK.findall(message.content):
            yield on or inside, things
