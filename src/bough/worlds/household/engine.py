"""A game being played: takes a command, returns feedback, and knows the next commands and whether it is won."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from bough.worlds.household.game import Game, Kind
from bough.worlds.household.world import NOWHERE, Action, Commands, World


class GameEngine:
    """One game. After it is won it can still be played, like the original."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.intro = intro(self.world)

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


class GameInfo(Mapping[str, Any]):
    """What programs are told about a step. `admissible` is sorted when it is asked for, since few programs do."""

    def __init__(self, commands: Commands, **facts: Any) -> None:
        self._commands, self._facts = commands, facts

    def __getitem__(self, name: str) -> Any:
        return sorted(self._commands) if name == "admissible" else self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["admissible", *self._facts])

    def __len__(self) -> int:
        return len(self._facts) + 1


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


def intro(world: World) -> str:
    """The text at the start of a game."""
    return f"{BANNER}{_surroundings(world, every_place=True)}\n\n{world.game.task}"


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
