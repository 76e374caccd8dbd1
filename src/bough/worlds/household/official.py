"""Reads official games: `game.tw-pddl` files, JSON with a PDDL problem and a grammar inside.

One domain and one grammar serve all of them, and this package knows both by heart; from
the grammar only the sentence of the task and the words that changed between editions are
taken. A file that asks for more than that is refused rather than played wrongly.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bough.errors import InputError
from bough.worlds.household.game import TRAITS, WORDING, Game, Goal, Kind, Receptacle, Thing, Wording
from bough.worlds.household.world import NOWHERE

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


class Facts:
    """What is true at the start: for each predicate its arguments."""

    def __init__(self, text: str) -> None:
        self._facts: dict[str, list[list[str]]] = defaultdict(list)
        for fact in _FACT.findall(text):
            name, *arguments = fact.split()
            self._facts[name].append(arguments)

    @property
    def predicates(self) -> set[str]:
        return set(self._facts)

    @property
    def ids(self) -> set[str]:
        """Everything that some fact is about."""
        return {identity for facts in self._facts.values() for arguments in facts for identity in arguments}

    def firsts(self, *predicates: str) -> set[str]:
        return {arguments[0] for predicate in predicates for arguments in self._facts[predicate]}

    def seconds(self, *predicates: str) -> set[str]:
        return {arguments[1] for predicate in predicates for arguments in self._facts[predicate]}

    def pairs(self, predicate: str) -> list[tuple[str, str]]:
        return [(arguments[0], arguments[1]) for arguments in self._facts[predicate]]


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
    facts = Facts(problem[begin:end])
    unknown = sorted(facts.predicates - _READ - _IDLE)
    if unknown:
        raise InputError(f"the problem starts from facts that no official game has: {', '.join(unknown)}")
    if len(facts.pairs("atlocation")) != 1:
        raise InputError("the problem must say once where the agent is: (atLocation agent place)")
    places = sorted(facts.seconds("atlocation", "receptacleatlocation", "objectatlocation"))
    names = _names(facts.ids)
    receptacles = sorted(facts.firsts("receptacleatlocation", "receptacletype") | facts.seconds("inreceptacle"))
    things = sorted(facts.firsts("objectatlocation", "objecttype", "inreceptacle", "inreceptacleobject"))
    number, index = ({identity: i for i, identity in enumerate(several)} for several in (receptacles, things))
    made = _things(facts, things, names, places, number)
    return Game(
        task=_sentence("task", grammar),
        goal=_goal(problem[end:]),
        start=places.index(facts.pairs("atlocation")[0][1]),
        receptacles=_receptacles(facts, receptacles, names, places),
        things=made,
        fits=_fits(facts, {thing.type for thing in made if "p" in thing.traits}),
        within=tuple(sorted((index[inner], index[outer]) for inner, outer in facts.pairs("inreceptacleobject"))),
        wording=_wording(grammar),
    )


def _receptacles(facts: Facts, ids: list[str], names: dict[str, str], places: list[str]) -> tuple[Receptacle, ...]:
    types, place = dict(facts.pairs("receptacletype")), dict(facts.pairs("receptacleatlocation"))
    openable, opened = facts.firsts("openable"), facts.firsts("opened")
    return tuple(
        Receptacle(names[i], _type(types.get(i, "")), _index(places, place.get(i)), i in openable, i in opened)
        for i in ids
    )


def _things(
    facts: Facts, ids: list[str], names: dict[str, str], places: list[str], number: dict[str, int]
) -> tuple[Thing, ...]:
    types, place = dict(facts.pairs("objecttype")), dict(facts.pairs("objectatlocation"))
    holders = {letter: facts.firsts(trait) for trait, letter in TRAITS.items()}
    inside: dict[str, set[int]] = defaultdict(set)
    for thing, receptacle in facts.pairs("inreceptacle"):
        inside[thing].add(number[receptacle])
    return tuple(
        Thing(
            names[i],
            _type(types.get(i, "")),
            "".join(letter for letter, several in holders.items() if i in several),
            _index(places, place.get(i)),
            tuple(sorted(inside[i])),
        )
        for i in ids
    )


def _fits(facts: Facts, carried: set[str]) -> dict[str, frozenset[str]]:
    """Which things fit where, for the types in this game: the whole table would double a game's size."""
    fits: dict[str, set[str]] = defaultdict(set)
    present = facts.seconds("receptacletype")
    for receptacle, thing in facts.pairs("cancontain"):
        if receptacle in present and _type(thing) in carried:
            fits[_type(receptacle)].add(_type(thing))
    return {receptacle: frozenset(types) for receptacle, types in sorted(fits.items())}


def _type(name: str) -> str:
    return name.removesuffix("type")


def _index(places: list[str], place: str | None) -> int:
    return NOWHERE if place is None else places.index(place)


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
    types = {arguments[0]: _type(arguments[1]) for predicate, *arguments in atoms if predicate == "objecttype"}
    if kind == "look_at_obj_in_light":
        held = next(arguments[1] for predicate, *arguments in atoms if predicate == "holds")
        lamp = next(arguments[0] for predicate, *arguments in atoms if predicate == "istoggled")
        return Goal(kind, types[held], types[lamp])
    targets = {_type(arguments[1]) for predicate, *arguments in atoms if predicate == "receptacletype"}
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
    text: str = json.loads(found[1])
    return text
