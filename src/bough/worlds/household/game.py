"""What a game is before anybody moves: the furniture, the things, who fits where, what is to be done.

Receptacles and things stand in the order of their ids, which is the order in which every
list of the game's texts names them; everywhere else they are known by their index.
A game has a compact form in plain JSON values, small enough to travel inside a task.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from bough.errors import InputError

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
NOWHERE = -1

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


# Official games: `game.tw-pddl` files, JSON with a PDDL problem and a grammar inside.
# One domain and one grammar serve all of them, and this package knows both by heart; from the grammar only the
# sentence of the task and the words that changed between editions are taken. A file that asks for more than that is
# refused rather than played wrongly.

FILE_NAME = "game.tw-pddl"
_FACT = re.compile(r"\(([^()]+)\)")
_RULE = r'"{}"\s*:\s*\[\s*\{{\s*"rhs"\s*:\s*("(?:[^"\\]|\\.)*")'
_PUT = re.compile(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"')
_HELP = re.compile(r'action\s+help\s*\{\s*template\s*::\s*"help";\s*feedback\s*::\s*"([^"]*)"')
# The predicates of a goal determine its task type.
_PLACE = {"inreceptacle", "objecttype", "receptacletype"}
_LIGHT = {"toggleable", "istoggled", "receptacleatlocation", "atlocation", "holds"}
_GOALS: dict[frozenset[str], Kind] = {
    frozenset(_PLACE): "pick_and_place_simple",
    frozenset(_PLACE | {"="}): "pick_two_obj_and_place",
    frozenset(_PLACE | {"cleanable", "isclean"}): "pick_clean_then_place_in_recep",
    frozenset(_PLACE | {"heatable", "ishot"}): "pick_heat_then_place_in_recep",
    frozenset(_PLACE | {"coolable", "iscool"}): "pick_cool_then_place_in_recep",
    frozenset(_LIGHT | {"inreceptacle", "objecttype"}): "look_at_obj_in_light",
}
_READ = {
    *TRAITS, "atlocation", "receptacleatlocation", "objectatlocation", "openable", "opened", "inreceptacle",
    "inreceptacleobject", "receptacletype", "objecttype", "cancontain",
}  # fmt: skip
# Ignored: nothing in the domain, the grammar or the goals uses them.
_IDLE = {
    "distance", "total-cost", "wasinreceptacle", "checked", "examined", "full", "isreceptacleobjectfull", "moveable",
    "ison",
}  # fmt: skip


def load(path: str | Path) -> dict[str, Any]:
    """The content of a file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: the game cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a game file; a {FILE_NAME} is JSON: {error}") from None
    if not isinstance(content, dict) or not {"pddl_problem", "grammar"} <= content.keys():
        raise InputError(f'{path}: not a game file; a {FILE_NAME} has "pddl_problem" and "grammar"')
    return content


def read(path: str | Path) -> Game:
    """The game in a file."""
    content = load(path)
    try:
        return parse(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse(content: dict[str, Any]) -> Game:
    """The game of a file's content."""
    problem, grammar = re.sub(r";[^\n]*", "", content["pddl_problem"]).lower(), content["grammar"]
    begin, end = problem.find("(:init"), problem.find("(:goal")
    if not 0 <= begin < end:
        raise InputError("the problem lacks (:init …) or (:goal …), in this order")
    facts: defaultdict[str, list[list[str]]] = defaultdict(list)  # for each predicate its arguments
    for fact in _FACT.findall(problem[begin:end]):
        name, *arguments = fact.split()
        facts[name].append(arguments)
    if unknown := sorted(facts.keys() - _READ - _IDLE):
        raise InputError(f"the problem starts from facts that no official game has: {', '.join(unknown)}")
    if len(facts["atlocation"]) != 1:
        raise InputError("the problem must say once where the agent is: (atLocation agent place)")

    def column(number: int, *predicates: str) -> set[str]:
        return {arguments[number] for predicate in predicates for arguments in facts[predicate]}

    def types(predicate: str) -> dict[str, str]:
        return {identity: type_.removesuffix("type") for identity, type_ in facts[predicate]}

    places = sorted(column(1, "atlocation", "receptacleatlocation", "objectatlocation"))
    place = {
        identity: places.index(at) for name in ("receptacle", "object") for identity, at in facts[f"{name}atlocation"]
    }
    names = _names({identity for several in facts.values() for arguments in several for identity in arguments})
    furniture = sorted(column(0, "receptacleatlocation", "receptacletype") | column(1, "inreceptacle"))
    objects = sorted(column(0, "objectatlocation", "objecttype", "inreceptacle", "inreceptacleobject"))
    openable, opened = column(0, "openable"), column(0, "opened")
    receptacle_types, object_types = types("receptacletype"), types("objecttype")
    receptacles = tuple(
        Receptacle(names[i], receptacle_types.get(i, ""), place.get(i, NOWHERE), i in openable, i in opened)
        for i in furniture
    )
    with_trait = {letter: column(0, trait) for trait, letter in TRAITS.items()}
    inside: defaultdict[str, set[int]] = defaultdict(set)
    for thing, receptacle in facts["inreceptacle"]:
        inside[thing].add(furniture.index(receptacle))
    things = tuple(
        Thing(
            names[i],
            object_types.get(i, ""),
            "".join(letter for letter, several in with_trait.items() if i in several),
            place.get(i, NOWHERE),
            tuple(sorted(inside[i])),
        )
        for i in objects
    )
    # Which things fit where, for the types in this game: the whole table would double a game's size.
    fits: defaultdict[str, set[str]] = defaultdict(set)
    carried = {thing.type for thing in things if "p" in thing.traits}
    for receptacle, thing in facts["cancontain"]:
        if receptacle in column(1, "receptacletype") and thing.removesuffix("type") in carried:
            fits[receptacle.removesuffix("type")].add(thing.removesuffix("type"))
    within = sorted((objects.index(inner), objects.index(outer)) for inner, outer in facts["inreceptacleobject"])
    return Game(
        task=_sentence("task", grammar),
        goal=_goal(problem[end:]),
        start=places.index(facts["atlocation"][0][1]),
        receptacles=receptacles,
        things=things,
        fits={receptacle: frozenset(types) for receptacle, types in sorted(fits.items())},
        within=tuple(within),
        wording=_wording(grammar),
    )


def _names(ids: set[str]) -> dict[str, str]:
    """What the ids are called: the type and a number, counted down in the order of the ids."""
    words = {}
    for identity in sorted(ids):
        word, bar, _ = identity.partition("_bar_")
        words[identity] = (word + ("basin" if "basin" in identity else "")) if bar else ""
    left = Counter(words.values())
    names = {}
    for identity, word in words.items():
        names[identity] = f"{word} {left[word]}" if word else f"{identity} "
        left[word] -= 1
    return names


def _goal(text: str) -> Goal:
    atoms = [tuple(atom.split()) for atom in _FACT.findall(text) if " - " not in atom]
    kind = _GOALS.get(frozenset(predicate for predicate, *_ in atoms))
    if kind is None:
        said = ", ".join(sorted({predicate for predicate, *_ in atoms}))
        raise InputError(f"the goal is none of the six types that official games have; its predicates are {said}")

    def arguments(wanted: str) -> list[list[str]]:
        return [rest for predicate, *rest in atoms if predicate == wanted]

    types = {variable: type_.removesuffix("type") for variable, type_ in arguments("objecttype")}
    if kind == "look_at_obj_in_light":
        return Goal(kind, types[arguments("holds")[0][1]], types[arguments("istoggled")[0][0]])
    targets = {type_.removesuffix("type") for _, type_ in arguments("receptacletype")}
    if len(targets) != 1 or len(set(types.values())) != 1:
        raise InputError("the goal names several types of things or receptacles; official goals name one")
    return Goal(kind, types.popitem()[1], targets.pop())


def _wording(grammar: str) -> Wording:
    put, help_text = _PUT.search(grammar), _HELP.search(grammar)
    if put is None or help_text is None:
        raise InputError("the grammar lacks the action PutObject or help")
    said = _sentence("PutObject.feedback", grammar).replace("{o.name}", "{o}").replace("{r.name}", "{r}")
    helped = help_text[1]
    if helped.startswith("#"):  # the newest edition keeps it among its rules
        helped = _sentence(helped.strip("#"), grammar)
    wording = Wording(put[1], said, helped.strip())
    return WORDING if wording == WORDING else wording


def _sentence(rule: str, grammar: str) -> str:
    found = re.search(_RULE.format(re.escape(rule)), grammar)
    if found is None:
        raise InputError(f'the grammar lacks the rule "{rule}"')
    return str(json.loads(found[1]))
