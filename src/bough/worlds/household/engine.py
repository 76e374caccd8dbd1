"""A game being played: takes a command, returns feedback, and knows the next commands and whether it is won."""

from __future__ import annotations

from functools import cached_property

from bough.worlds.household import feedback
from bough.worlds.household.game import Game
from bough.worlds.household.goal import met
from bough.worlds.household.world import Action, World


class GameEngine:
    """One game. After it is won it can still be played, like the original."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.intro = feedback.intro(self.world)

    @cached_property
    def commands(self) -> dict[str, Action]:
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
            return feedback.NOTHING, None
        self.world.apply(action)
        del self.commands
        self.__dict__.pop("won", None)
        return feedback.after(self.world, action), action
