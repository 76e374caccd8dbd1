"""Progress in a game, 0 to 1: a dense signal for agents that do not win yet."""

from __future__ import annotations

from bough.worlds.household import goal as goals
from bough.worlds.household.memory import Memory


def progress(memory: Memory) -> float:
    """The share of the task that is done.

    A right thing is to be found, taken, changed where the task says so, and placed; of two
    things each counts for a half. In the light task the used lamp at hand comes last.
    """
    world = memory.world
    goal = world.game.goal
    candidates = world.candidates
    held = world.held if world.held in candidates else None
    if goal.kind == "look_at_obj_in_light":
        if goals.met(world):
            return 1.0
        found = memory.knows(candidates)
        return (found + (held is not None) + goals.lit(world)) / 3
    best = goals.best_placed(world)
    if len(best) >= goals.needed(world):
        return 1.0
    found = memory.knows(candidates.difference(best))
    changing = goal.kind in goals.CHANGES
    changed = changing and held is not None and goals.ready(world, held)
    share = (found + (held is not None) + changed) / (4 if changing else 3)
    return (len(best) + share) / 2 if goal.kind == "pick_two_obj_and_place" else share
