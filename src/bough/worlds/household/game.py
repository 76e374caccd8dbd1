"""What a game is before anybody moves: the furniture, the things, who fits where, what is to be done.

Receptacles and things stand in the order of their ids, which is the order in which every
list of the game's texts names them; everywhere else they are known by their index.
A game has a compact form in plain JSON values, small enough to travel inside a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# One letter for each thing that is true of an object at the start. The small ones never
# change; the capitals are states, of which official games set only "K".
TRAITS = {
    "pickupable": "p", "cleanable": "c", "heatable": "h", "coolable": "k", "toggleable": "t", "sliceable": "s",
    "isreceptacleobject": "r", "isclean": "C", "ishot": "H", "iscool": "K", "istoggled": "T", "issliced": "S",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Furniture that things lie in or on. `place` is the spot one stands at to use it; several may share it."""

    name: str
    type: str
    place: int
    openable: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    """An object. `inside` are the receptacles it lies in: in official games two of them now and then."""

    name: str
    type: str
    traits: str
    place: int
    inside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins. `target` is a type of receptacle; for `look_at_obj_in_light` it is the lamp's type."""

    kind: Kind
    object: str
    target: str


@dataclass(frozen=True, slots=True)
class Wording:
    """What differs between editions of the official files."""

    put_command: str = "move {o} to {r}"
    put_feedback: str = "You move the {o} to the {r}."
    help: str = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object"""


WORDING = Wording()


@dataclass(frozen=True, slots=True)
class Game:
    """A start. `fits` says which types of things a type of receptacle takes; `within` are (inner, outer) things."""

    task: str
    goal: Goal
    start: int
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    fits: Mapping[str, frozenset[str]]
    within: tuple[tuple[int, int], ...] = ()
    wording: Wording = field(default=WORDING)

    def to_data(self) -> dict[str, Any]:
        """The compact form."""
        data: dict[str, Any] = {
            "task": self.task,
            "goal": [self.goal.kind, self.goal.object, self.goal.target],
            "start": self.start,
            "receptacles": [[r.name, r.type, r.place, r.openable + r.opened] for r in self.receptacles],
            "things": [[t.name, t.type, t.traits, t.place, list(t.inside)] for t in self.things],
            "fits": {receptacle: sorted(types) for receptacle, types in sorted(self.fits.items())},
        }
        if self.within:
            data["within"] = [list(pair) for pair in self.within]
        if self.wording != WORDING:
            data["wording"] = [self.wording.put_command, self.wording.put_feedback, self.wording.help]
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The game of a compact form."""
        return cls(
            task=data["task"],
            goal=Goal(*data["goal"]),
            start=data["start"],
            receptacles=tuple(
                Receptacle(name, kind, place, doors > 0, doors > 1) for name, kind, place, doors in data["receptacles"]
            ),
            things=tuple(
                Thing(name, kind, traits, place, tuple(inside)) for name, kind, traits, place, inside in data["things"]
            ),
            fits={receptacle: frozenset(types) for receptacle, types in data["fits"].items()},
            within=tuple((inner, outer) for inner, outer in data.get("within", ())),
            wording=Wording(*data["wording"]) if "wording" in data else WORDING,
        )
