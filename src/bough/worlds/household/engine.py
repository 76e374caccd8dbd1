"""A game as it is played: a command in; feedback, what can be said next and whether it is won out."""

from __future__ import annotations

from functools import cached_property

from bough.worlds.household import feedback
from bough.worlds.household.game import Game
from bough.worlds.household.goal import met
from bough.worlds.household.world import Action, World


class GameEngine:
    """One game. A game that is won can be played on, as the original can."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.intro = feedback.intro(self.world)

    @cached_property
    def commands(self) -> dict[str, Action]:
        """What can be said now."""
        return self.world.commands()

    @property
    def admissible(self) -> list[str]:
        return sorted(self.commands)

    @property
    def won(self) -> bool:
        return met(self.world)

    def step(self, command: str) -> tuple[str, Action | None]:
        """The game's answer, and what was done; None where the command means nothing here and now."""
        action = self.commands.get(command.strip())
        if action is None:
            return feedback.NOTHING, None
        self.world.apply(action)
        del self.commands
        return feedback.after(self.world, action), action
