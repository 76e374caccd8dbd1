"""What an agent has seen so far: the part of the state that it may know.

The furniture is named at the start. What lies in a receptacle is known once it was shown;
from then on only the agent itself changes it.
"""

from __future__ import annotations

from collections.abc import Set

from bough.worlds.household.world import Action, World

SHOWING = ("go", "open", "examine receptacle")


class Memory:
    """The receptacles that were looked into, and the last one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[int] = set()
        self.last: int | None = None

    def note(self, action: Action) -> None:
        """Remembers what an action showed."""
        if action.verb in SHOWING and self.world.accessible(action.receptacle):
            self.seen.add(action.receptacle)
            self.last = action.receptacle

    def where(self, thing: int) -> list[int]:
        """The receptacles in which the thing is known to lie."""
        return [receptacle for receptacle in sorted(self.seen) if thing in self.world.contents[receptacle]]

    def knows(self, things: Set[int]) -> bool:
        """Whether the agent knows where one of these is: in its hand, or where it saw it."""
        if self.world.held in things:
            return True
        contents = self.world.contents
        return any(not things.isdisjoint(contents[receptacle]) for receptacle in self.seen)


class Omniscience(Memory):
    """A memory that knows where everything is."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.seen = set(range(len(world.contents)))
