"""A small flat, made by hand, in which every rule can be checked.

place 0   the middle of the room
place 1   drawer 1 (closed): apple 2
place 2   shelf 1: mug 1
place 3   countertop 1: apple 1, knife 1; and sinkbasin 1, at the same spot
place 4   fridge 1 (closed)
place 5   microwave 1 (closed)
place 6   desk 1: desklamp 1
"""

from typing import Any

from bough.worlds.household.engine import GameEngine
from bough.worlds.household.game import Game, Goal, Kind, Receptacle, Thing

COUNTERTOP, DESK, DRAWER, FRIDGE, MICROWAVE, SHELF, SINK = range(7)
APPLE_2, APPLE_1, LAMP, KNIFE, MUG = range(5)
RECEPTACLES = (
    Receptacle("countertop 1", "countertop", 3),
    Receptacle("desk 1", "desk", 6),
    Receptacle("drawer 1", "drawer", 1, openable=True),
    Receptacle("fridge 1", "fridge", 4, openable=True),
    Receptacle("microwave 1", "microwave", 5, openable=True),
    Receptacle("shelf 1", "shelf", 2),
    Receptacle("sinkbasin 1", "sinkbasin", 3),
)
THINGS = (
    Thing("apple 2", "apple", "pchks", 1, (DRAWER,)),
    Thing("apple 1", "apple", "pchks", 3, (COUNTERTOP,)),
    Thing("desklamp 1", "desklamp", "t", 6, (DESK,)),
    Thing("knife 1", "knife", "pc", 3, (COUNTERTOP,)),
    Thing("mug 1", "mug", "pchkr", 2, (SHELF,)),
)
EVERYWHERE = frozenset({"apple", "mug", "knife"})
FITS = {
    "countertop": EVERYWHERE,
    "desk": frozenset({"mug"}),
    "drawer": EVERYWHERE,
    "fridge": frozenset({"apple", "mug"}),
    "shelf": EVERYWHERE,
    "sinkbasin": frozenset({"apple", "knife"}),
}


def flat(kind: Kind = "pick_and_place_simple", thing: str = "apple", target: str = "shelf", **changes: Any) -> Game:
    game: dict[str, Any] = {
        "task": f"Your task is to: put some {thing} on {target}.",
        "goal": Goal(kind, thing, target),
        "start": 0,
        "receptacles": RECEPTACLES,
        "things": THINGS,
        "fits": FITS,
    }
    return Game(**(game | changes))


def played(game: Game, *commands: str) -> GameEngine:
    """The game after some commands, every one of which means something."""
    engine = GameEngine(game)
    for command in commands:
        _, action = engine.step(command)
        assert action is not None, f"{command!r} is not among {engine.admissible}"
    return engine
