"""What an agent has been shown so far: the part of the state that it may know.

The furniture is named at the start. What lies in a receptacle, and whether it is closed, is known once it was
shown; from then on only the agent itself changes it. Which receptacles stand at one spot is never said at the
start: an agent that goes to one that is at hand already is told that nothing happens.
"""

from __future__ import annotations

from collections.abc import Set

from bough.worlds.household.world import Action, World

SHOWING = ("go", "open", "examine receptacle")
# Actions that name a receptacle of the current place.
AT_HAND = (*SHOWING, "close", "take", "put", "clean", "heat", "cool")


class Memory:
    """The receptacles that were looked into, the last of them, those known to be open or closed, those at hand."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[int] = set()
        self.shown: set[int] = set()
        self.last: int | None = None
        self._reached: set[int] = set()

    @property
    def at_hand(self) -> Set[int]:
        """The receptacles that are known to be at the current place."""
        return self._reached

    def note(self, action: Action) -> None:
        """Remembers what an action showed."""
        if action.verb == "go":
            self._reached = set()
        if action.verb == "look":
            self._reached.update(self.world.here)
        if action.verb in AT_HAND:
            self._reached.add(action.receptacle)
        if action.verb in SHOWING:
            self.shown.add(action.receptacle)
            if self.world.accessible(action.receptacle):
                self.seen.add(action.receptacle)
                self.last = action.receptacle

    def refused(self, command: str) -> None:
        """Remembers that nothing happened: a receptacle that one cannot go to is at hand."""
        for receptacle in self.world.here:
            if command.strip() == f"go to {self.world.game.receptacles[receptacle].name}":
                self._reached.add(receptacle)

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
        self.shown = set(self.seen)

    @property
    def at_hand(self) -> Set[int]:
        return set(self.world.here)
