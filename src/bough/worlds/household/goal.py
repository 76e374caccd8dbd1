"""When a game is won."""

from __future__ import annotations

from bough.worlds.household.game import Kind
from bough.worlds.household.world import World

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
