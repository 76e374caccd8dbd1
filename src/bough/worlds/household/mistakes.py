"""Mistakes in a household, as its texts show them: claims, undone steps, searches in implausible places."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter
from pydantic_core import to_json

from bough.config.base import Config
from bough.environments.base import MistakeRules, Rule, action_of
from bough.errors import InputError
from bough.files import read_json
from bough.types import Trajectory, Turn
from bough.worlds.household.engine import NOTHING
from bough.worlds.household.generate import whereabouts

_DONE = re.compile(r"^\W*(?:the )?task (?:is |has been |was )?(?:succeeded|completed?|done|finished|solved)\W*$", re.I)
_TASK = re.compile(r"your task is to: *(.+)", re.I)
_SEARCH = re.compile(r"^(?:go to|open) (\w+ \d+)$")
_TAKE = re.compile(r"^take (\w+ \d+) from (\w+ \d+)$")
_PUT = re.compile(r"^(?:move|put) (\w+ \d+) (?:to|in/on|in|on) (\w+ \d+)$")
_LID = re.compile(r"^(open|close) (\w+ \d+)$")


class HouseholdRules(MistakeRules):
    """The rules with what is known about places: at first, where the official games have things."""

    class Options(Config):
        """Where things are."""

        locations: Path | None = Field(
            None,
            description='a JSON file of plausible places, {"apple": ["countertop", "fridge"], …} '
            "(default: learned from what the episodes saw)",
        )
        rare: float = Field(
            0.05, gt=0, lt=1, description="a place is implausible if fewer than this share of such places had the thing"
        )

    def __init__(self, locations: Locations | None = None) -> None:
        self.locations = locations if locations is not None else Locations(whereabouts())

    def without_effect(self, turn: Turn) -> bool:
        # Files from elsewhere mark no errors; there only the text tells.
        said = "\n".join(message.content for message in turn.observation).strip()
        return super().without_effect(turn) or said.startswith(NOTHING)

    def claims_success(self, turn: Turn) -> bool:
        return _DONE.match(action_of(turn)) is not None

    def own(self) -> Mapping[str, Rule]:
        return {
            "wasted_step": partial(wasted_step, rules=self),
            "implausible_location": partial(implausible_location, locations=self.locations),
        }

    def learn(self, trajectories: Iterable[Trajectory], options: Any) -> HouseholdRules:
        assert isinstance(options, self.Options)
        if options.locations is not None:
            return HouseholdRules(Locations.read(options.locations))
        return HouseholdRules(Locations.learn(trajectories, options.rare))


def wasted_step(trajectory: Trajectory, at: int, rules: MistakeRules) -> bool:
    """Undoes the step before: puts back what was just taken, closes what was just opened."""
    if at == 0 or any(map(rules.without_effect, trajectory.turns[at - 1 : at + 1])):
        return False
    before, after = (action_of(turn).strip().lower() for turn in trajectory.turns[at - 1 : at + 1])
    for first, second in ((_TAKE, _PUT), (_PUT, _TAKE)):
        taken, put = first.match(before), second.match(after)
        if taken and put:
            return taken.groups() == put.groups()
    lids = _LID.match(before), _LID.match(after)
    return bool(lids[0] and lids[1] and lids[0][1] != lids[1][1] and lids[0][2] == lids[1][2])


def implausible_location(trajectory: Trajectory, at: int, locations: Locations) -> bool:
    """Searches where the thing is hardly ever found, while a plausible place has not been visited.

    A place that the task names is a destination, not a search. Once such a thing was seen,
    the search is over.
    """
    search = _SEARCH.match(action_of(trajectory.turns[at]).strip().lower())
    said = "\n".join(message.content for message in trajectory.start).lower()
    task = _TASK.search(said)
    if search is None or task is None:
        return False
    words = re.findall(r"\w+", task[1])
    thing = next((word for word in words if word in locations.likely), None)
    if thing is None or type_of(search[1]) in words or not locations.implausible(thing, type_of(search[1])):
        return False
    past = trajectory.turns[:at]
    if any(type_of(name) == thing for turn in past for message in turn.observation for name in names(message.content)):
        return False
    visited = {match[1] for turn in past if (match := _SEARCH.match(action_of(turn).strip().lower()))}
    return any(type_of(name) in locations.likely[thing] and name not in visited for name in names(said))


# Plausible places: in which types of receptacles a type of thing is found at all.
# Learned from what episodes saw when they first looked into a receptacle, or given as a JSON file: {"apple":
# ["countertop", "fridge"], …}.

# The length of a list is bounded: otherwise a text of many unfinished lists takes quadratic time.
_LOOK = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^.]{0,2000})\.")
_THING = re.compile(r"\b([a-z]\w*) \d+")
_PUT_DOWN = re.compile(r"(?:move|put) \w+ \d+ (?:to|in/on|in|on) (\w+ \d+)")


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
        # What each place contained when it was first looked into; places that the agent filled itself are left out.
        looks: set[tuple[bytes, str, str, frozenset[str]]] = set()
        for trajectory in trajectories:
            task, done = trajectory.task, set[str]()
            room = to_json((task.environment, task.id, task.seed, trajectory.start, trajectory.tools))
            for turn in trajectory.turns:
                done |= set(_PUT_DOWN.findall(turn.action or ""))
                for on, inside, things in (look for said in turn.observation for look in _LOOK.findall(said.content)):
                    if (name := on or inside) not in done:
                        done.add(name)
                        looks.add((room, name, type_of(name), frozenset(map(type_of, names(things)))))
        looked = Counter(place for _, _, place, _ in looks)
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for _, _, place, held in looks:
            for thing in held:
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
            given = TypeAdapter(dict[str, list[str]]).validate_python(read_json(path))
        except OSError as error:
            raise InputError(f"locations {path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputError(f'locations {path}: must be JSON like {{"apple": ["countertop", "fridge"]}}') from None
        return cls({thing.lower(): frozenset(map(str.lower, places)) for thing, places in given.items()})

    def implausible(self, thing: str, place: str) -> bool:
        """Whether `thing` is hardly ever found in such a place, as far as is known."""
        known = thing in self.likely and (self.judged is None or place in self.judged)
        return known and place not in self.likely[thing]


def type_of(name: str) -> str:
    """ "shelf 2" is a shelf."""
    return name.split(" ")[0]


def names(text: str) -> list[str]:
    """The numbered things that a text names: "shelf 2", …"""
    return [match[0] for match in _THING.finditer(text)]
