"""A game being played: what can be done now and what it changes, what the game says, and when it is won.

The rules are the actions of ALFWorld's PDDL domain. Two of their oddities are kept because
official games show them: a thing may lie in two receptacles at once, and what lies "next
to" a place are things that came back to it after they were taken from a receptacle there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import to_json

from bough.files import text_digest
from bough.worlds.household.game import NOWHERE, Game, Kind

# A verb, the trait that a thing needs for it, and where it is done.
CHANGING = (("clean", "c", ("sink", "sinkbasin")), ("heat", "h", ("microwave",)), ("cool", "k", ("fridge",)))
# What changes the agent's place at most.
ONLY_MOVES = frozenset({"go", "look", "inventory", "help", "examine receptacle", "examine thing"})


class Action(NamedTuple):
    """A verb of the domain, the thing and the receptacle it concerns, and the knife of a slice."""

    verb: str
    thing: int = NOWHERE
    receptacle: int = NOWHERE
    tool: int = NOWHERE


class Commands(Mapping[str, Action]):
    """The commands that are possible in one state, and their actions. It does not change with the world.

    Most of them only go elsewhere. These are the same for every state at a place, so a command is looked up
    without listing them.
    """

    def __init__(self, place: int, ways: Mapping[str, tuple[int, Action]], at_hand: Mapping[str, Action]) -> None:
        self._place, self.ways, self._at_hand = place, ways, at_hand

    def __getitem__(self, command: str) -> Action:
        place, action = self.ways.get(command, (self._place, None))
        # Going to the current place, or to another receptacle at the same place, is not possible.
        return action if action is not None and place != self._place else self._at_hand[command]

    def __iter__(self) -> Iterator[str]:
        yield from (command for command, (place, _) in self.ways.items() if place != self._place)
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
    def ways(self) -> dict[str, tuple[int, Action]]:
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
        game, things, held = self.game, self.game.things, self.held
        found = {verb: Action(verb) for verb in ("look", "inventory", "help")}
        for i in self.here:
            receptacle = game.receptacles[i]
            found[f"examine {receptacle.name}"] = Action("examine receptacle", receptacle=i)
            if receptacle.openable:
                verb = "close" if i in self.opened else "open"
                found[f"{verb} {receptacle.name}"] = Action(verb, receptacle=i)
            for thing in self.contents[i]:
                if held is None and "p" in things[thing].traits and self.accessible(i):
                    found[f"take {things[thing].name} from {receptacle.name}"] = Action("take", thing, i)
                if "t" in things[thing].traits:
                    found[f"use {things[thing].name}"] = Action("use", thing, i)
            if held is None:
                continue
            if self.accessible(i) and self.fits(held, i):
                found[game.wording.put_command.format(o=things[held].name, r=receptacle.name)] = Action("put", held, i)
            for verb, trait, types in CHANGING:
                if trait in things[held].traits and receptacle.type in types:
                    found[f"{verb} {things[held].name} with {receptacle.name}"] = Action(verb, held, i)
        if held is not None:
            # The domain means things in open receptacles too, but a stray comma in it rules them out.
            found[f"examine {things[held].name}"] = Action("examine thing", held)
            if things[held].type in ("knife", "butterknife"):
                for thing in self.lying.get(self.place, ()):
                    if "s" in things[thing].traits:
                        action = Action("slice", thing, tool=held)
                        found[f"slice {things[thing].name} with {things[held].name}"] = action
        return Commands(self.place, self.ways, found)

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


class GameEngine:
    """One game. After it is won it can still be played, like the original."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.intro = f"{BANNER}{_surroundings(self.world, every_place=True)}\n\n{game.task}"

    @cached_property
    def commands(self) -> Commands:
        """The commands that are possible now."""
        return self.world.commands()

    @property
    def admissible(self) -> list[str]:
        return sorted(self.commands)

    @cached_property
    def won(self) -> bool:
        return met(self.world)

    def step(self, command: str) -> tuple[str, Action | None]:
        """The game's answer, and the action taken; None if the command is not possible now."""
        action = self.commands.get(command.strip())
        if action is None:
            return NOTHING, None
        self.world.apply(action)
        del self.commands
        self.__dict__.pop("won", None)
        return after(self.world, action), action


# What the game says, word for word as the official grammar derives it.

NOTHING = "Nothing happens."
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"

# The first row whose states all hold describes a thing.
STATES = (
    ("CHS", "This is a hot and clean sliced {o}."),
    ("CKS", "This is a cool and clean sliced {o}."),
    ("CS", "This is a clean sliced {o}."),
    ("HS", "This is a hot sliced {o}."),
    ("KS", "This is a cool sliced {o}."),
    ("CH", "This is a hot and clean {o}."),
    ("CK", "This is a cool and clean {o}."),
    ("H", "This is a hot {o}."),
    ("C", "This is a clean {o}."),
    ("K", "This is a cold {o}."),
)


def after(world: World, action: Action) -> str:
    """The text after `action` was taken."""
    game = world.game
    o = game.things[action.thing].name if action.thing >= 0 else ""
    r = game.receptacles[action.receptacle].name if action.receptacle >= 0 else ""
    match action.verb:
        case "look":
            return _surroundings(world, every_place=False)
        case "inventory":
            held = () if world.held is None else (world.held,)
            return f"You are carrying: {_things(world, held)}." if held else "You are not carrying anything."
        case "help":
            return game.wording.help
        case "go":
            return f"You arrive at {r}. {_receptacle(world, action.receptacle)}"
        case "open":
            return f"You open the {r}. {_receptacle(world, action.receptacle)}"
        case "close":
            return f"You close the {r}."
        case "take":
            return f"You pick up the {o} from the {r}."
        case "put":
            return game.wording.put_feedback.format(o=o, r=r)
        case "examine receptacle":
            return _receptacle(world, action.receptacle)
        case "examine thing":
            return _thing(world, action.thing)
        case "use":
            return f"You turn on the {o}."
        case "slice":
            return f"You sliced the {o} with the {game.things[action.tool].name}."
        case verb:
            return f"You {verb} the {o} using the {r}."


def _surroundings(world: World, *, every_place: bool) -> str:
    game = world.game
    if world.here:
        facing = _listed(game.receptacles[r].name for r in world.here)
        beside = [
            thing
            for thing in sorted(world.lying.get(world.place, ()))
            for receptacle in world.here
            if (thing, receptacle) in world.taken
        ]
        return f"You are facing the {facing}. Next to it, you see {_things(world, beside)}."
    # The grammar lists what stands at the agent's own place, which is nothing in the middle
    # of the room; only at the start, when no place is bound yet, are all places meant.
    seen = _listed(f"a {r.name}" for r in game.receptacles if every_place and r.place != NOWHERE)
    return f"You are in the middle of a room. Looking quickly around you, you see {seen}."


def _receptacle(world: World, receptacle: int) -> str:
    name = world.game.receptacles[receptacle].name
    if not world.accessible(receptacle):
        return f"The {name} is closed."
    seen = _things(world, sorted(world.contents[receptacle]))
    if world.game.receptacles[receptacle].openable:
        return f"The {name} is open. In it, you see {seen}."
    return f"On the {name}, you see {seen}."


def _thing(world: World, thing: int) -> str:
    name, traits = world.game.things[thing].name, world.game.things[thing].traits
    if "r" in traits:
        inner = sorted(i for i, outer in world.game.within if outer == thing)
        return f"This is a normal {name}. In it, you see {_things(world, inner)}."
    for states, sentence in STATES:
        if all(world.has(thing, state) for state in states):
            return sentence.format(o=name)
    if "t" in traits and world.has(thing, "T"):
        return f"This {name} is on."
    if "s" in traits and world.has(thing, "S"):
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def _things(world: World, things: Iterable[int]) -> str:
    return _listed(f"a {world.game.things[thing].name}" for thing in things)


def _listed(names: Iterable[str]) -> str:
    words = list(names)
    if len(words) < 2:
        return words[0] if words else "nothing"
    return f"{', '.join(words[:-1])}, and {words[-1]}"


# When a game is won.

# What must be true of a thing before it is brought to its place: the trait it needs, the state it must have.
CHANGES: dict[Kind, tuple[str, str]] = {
    "pick_clean_then_place_in_recep": ("c", "C"),
    "pick_heat_then_place_in_recep": ("h", "H"),
    "pick_cool_then_place_in_recep": ("k", "K"),
}


def met(world: World) -> bool:
    """Whether the goal holds now."""
    goal = world.game.goal
    if goal.kind == "look_at_obj_in_light":
        return world.held is not None and world.game.things[world.held].type == goal.object and lit(world)
    return len(best_placed(world)) >= needed(world)


def best_placed(world: World) -> list[int]:
    """The right things, ready, in the allowed receptacle that has most of them."""
    found: list[int] | None = world.derived.get("placed")
    if found is None:
        found = max((placed(world, receptacle) for receptacle in world.targets), key=len, default=[])
        world.derived["placed"] = found
    return found


def needed(world: World) -> int:
    """How many things must be placed."""
    return 2 if world.game.goal.kind == "pick_two_obj_and_place" else 1


def ready(world: World, thing: int) -> bool:
    """Whether the thing is as the goal wants it (clean, hot, cool), wherever it is."""
    change = CHANGES.get(world.game.goal.kind)
    return change is None or (change[0] in world.game.things[thing].traits and world.has(thing, change[1]))


def placed(world: World, receptacle: int) -> list[int]:
    """The right things, ready, that lie in a receptacle."""
    wanted, things = world.game.goal.object, world.game.things
    return [i for i in world.contents[receptacle] if things[i].type == wanted and ready(world, i)]


def lit(world: World) -> bool:
    """Whether a lamp of the right type at hand has been used."""
    wanted, things = world.game.goal.target, world.game.things
    return any(
        things[thing].type == wanted and "t" in things[thing].traits and world.has(thing, "T")
        for receptacle in world.here
        for thing in world.contents[receptacle]
    )
