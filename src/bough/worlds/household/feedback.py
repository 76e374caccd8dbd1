"""What the game says, word for word as the official grammar derives it."""

from __future__ import annotations

from collections.abc import Iterable

from bough.worlds.household.world import NOWHERE, Action, World

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
