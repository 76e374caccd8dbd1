"""The state of a game and its rules: what can be done now, and what it changes.

The rules are the actions of ALFWorld's PDDL domain. Two of their oddities are kept because
official games show them: a thing may lie in two receptacles at once, and what lies "next
to" a place are things that came back to it after they were taken from a receptacle there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import to_json

from bough.files import text_digest
from bough.worlds.household.game import Game

NOWHERE = -1
CLEANERS = ("sink", "sinkbasin")
KNIVES = ("knife", "butterknife")
# What changes the agent's place at most.
ONLY_MOVES = frozenset({"go", "look", "inventory", "help", "examine receptacle", "examine thing"})


class Action(NamedTuple):
    """A verb of the domain, the thing and the receptacle it concerns, and the knife of a slice."""

    verb: str
    thing: int = NOWHERE
    receptacle: int = NOWHERE
    tool: int = NOWHERE


# What is possible everywhere.
ALWAYS = {verb: Action(verb) for verb in ("look", "inventory", "help")}


class Commands(Mapping[str, Action]):
    """The commands that are possible in one state, and their actions. It does not change with the world.

    Most of them only go elsewhere. These are the same for every state at a place, so a command is looked up
    without listing them.
    """

    def __init__(self, place: int, ways: Mapping[str, tuple[int, Action]], at_hand: Mapping[str, Action]) -> None:
        self._place, self._ways, self._at_hand = place, ways, at_hand

    def __getitem__(self, command: str) -> Action:
        place, action = self._ways.get(command, (self._place, None))
        # Going to the current place, or to another receptacle at the same place, is not possible.
        return action if action is not None and place != self._place else self._at_hand[command]

    def __iter__(self) -> Iterator[str]:
        yield from (command for command, (place, _) in self._ways.items() if place != self._place)
        yield from self._at_hand

    def __len__(self) -> int:
        return sum(1 for _ in self)


class World:
    """A game being played. Only `apply` changes it."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.place = game.start
        self.held: int | None = None
        self.opened = {i for i, r in enumerate(game.receptacles) if r.opened}
        self.contents: list[set[int]] = [set() for _ in game.receptacles]
        self.lying: defaultdict[int, set[int]] = defaultdict(set)  # place -> things said to be there
        self.taken: set[tuple[int, int]] = set()  # (thing, receptacle) it was taken from and not put back to
        self.states: dict[str, set[int]] = {state: set() for state in "CHKTS"}
        # Computed from everything but the agent's place, and dropped when that changes: most actions only look or go.
        self.derived: dict[str, Any] = {}
        self.at: defaultdict[int, list[int]] = defaultdict(list)
        for i, receptacle in enumerate(game.receptacles):
            self.at[receptacle.place].append(i)
        for i, thing in enumerate(game.things):
            self.lying[thing.place].add(i)
            for holder in thing.inside:
                self.contents[holder].add(i)
            for state in self.states:
                if state in thing.traits:
                    self.states[state].add(i)

    @cached_property
    def targets(self) -> list[int]:
        """The receptacles that the goal allows."""
        wanted = self.game.goal.target
        return [i for i, receptacle in enumerate(self.game.receptacles) if receptacle.type == wanted]

    @cached_property
    def candidates(self) -> frozenset[int]:
        """The things that the goal may mean."""
        wanted = self.game.goal.object
        return frozenset(i for i, thing in enumerate(self.game.things) if thing.type == wanted)

    @cached_property
    def _ways(self) -> dict[str, tuple[int, Action]]:
        """For each receptacle that one can go to the command, its place and the action."""
        named = enumerate(self.game.receptacles)
        return {f"go to {r.name}": (r.place, Action("go", receptacle=i)) for i, r in named if r.place != NOWHERE}

    @property
    def here(self) -> list[int]:
        """The receptacles at the current place."""
        return self.at.get(self.place, [])

    def accessible(self, receptacle: int) -> bool:
        """Whether the agent can see and reach into it."""
        return not self.game.receptacles[receptacle].openable or receptacle in self.opened

    def has(self, thing: int, state: str) -> bool:
        """Whether a thing is clean (C), hot (H), cool (K), toggled (T), sliced (S)."""
        return thing in self.states[state]

    def fits(self, thing: int, receptacle: int) -> bool:
        """Whether the receptacle takes things of this type."""
        game = self.game
        return game.things[thing].type in game.fits.get(game.receptacles[receptacle].type, ())

    def digest(self) -> str:
        """Equal for equal states: where everything is, what is open, and what was done to each thing."""
        if "digest" not in self.derived:
            rest = (
                self.held,
                sorted(self.opened),
                [sorted(inside) for inside in self.contents],
                sorted((place, sorted(things)) for place, things in self.lying.items() if things),
                sorted(self.taken),
                [sorted(things) for things in self.states.values()],
            )
            self.derived["digest"] = to_json(rest)[1:]
        return text_digest(b"[%d,%b" % (self.place, self.derived["digest"]), size=16)

    def commands(self) -> Commands:
        """Every command that is possible now, and its action."""
        return Commands(self.place, self._ways, self._at_hand())

    def _at_hand(self) -> dict[str, Action]:
        """Every possible command that does not go elsewhere."""
        game, things = self.game, self.game.things
        found = dict(ALWAYS)
        for i in self.here:
            receptacle = game.receptacles[i]
            found[f"examine {receptacle.name}"] = Action("examine receptacle", receptacle=i)
            if receptacle.openable:
                verb = "close" if i in self.opened else "open"
                found[f"{verb} {receptacle.name}"] = Action(verb, receptacle=i)
            inside = self.contents[i]
            if self.held is None and self.accessible(i):
                for thing in inside:
                    if "p" in things[thing].traits:
                        found[f"take {things[thing].name} from {receptacle.name}"] = Action("take", thing, i)
            for thing in inside:
                if "t" in things[thing].traits:
                    found[f"use {things[thing].name}"] = Action("use", thing, i)
            if self.held is not None:
                found |= self._with_held(self.held, i)
        if self.held is not None:
            # The domain means things in open receptacles too, but a stray comma in it rules them out.
            found[f"examine {things[self.held].name}"] = Action("examine thing", self.held)
            found |= self._slices(self.held)
        return found

    def _with_held(self, held: int, receptacle: int) -> dict[str, Action]:
        thing, where = self.game.things[held], self.game.receptacles[receptacle]
        found = {}
        if self.accessible(receptacle) and self.fits(held, receptacle):
            command = self.game.wording.put_command.format(o=thing.name, r=where.name)
            found[command] = Action("put", held, receptacle)
        if "c" in thing.traits and where.type in CLEANERS:
            found[f"clean {thing.name} with {where.name}"] = Action("clean", held, receptacle)
        if "h" in thing.traits and where.type == "microwave":
            found[f"heat {thing.name} with {where.name}"] = Action("heat", held, receptacle)
        if "k" in thing.traits and where.type == "fridge":
            found[f"cool {thing.name} with {where.name}"] = Action("cool", held, receptacle)
        return found

    def _slices(self, knife: int) -> dict[str, Action]:
        things = self.game.things
        if things[knife].type not in KNIVES or self.place not in self.lying:
            return {}
        return {
            f"slice {things[thing].name} with {things[knife].name}": Action("slice", thing, tool=knife)
            for thing in self.lying[self.place]
            if "s" in things[thing].traits
        }

    def apply(self, action: Action) -> None:
        """Carries out an action."""
        verb, thing, receptacle, _ = action
        if verb not in ONLY_MOVES:
            self.derived.clear()
        match verb:
            case "go":
                self.place = self.game.receptacles[receptacle].place
            case "open":
                self.opened.add(receptacle)
            case "close":
                self.opened.remove(receptacle)
            case "take":
                self.contents[receptacle].remove(thing)
                self.taken.add((thing, receptacle))
                self.lying[self.place].discard(thing)
                self.held = thing
            case "put":
                self.contents[receptacle].add(thing)
                self.taken.discard((thing, receptacle))
                self.lying[self.place].add(thing)
                self.held = None
            case "clean":
                self.states["C"].add(thing)
            case "heat":
                self.states["H"].add(thing)
                self.states["K"].discard(thing)
            case "cool":
                self.states["K"].add(thing)
                self.states["H"].discard(thing)
            case "use":
                # The domain cannot untoggle: a lamp that was used once counts as used.
                self.states["T"].add(thing)
            case "slice":
                self.states["S"].add(thing)
            case _:  # looking changes nothing
                pass
