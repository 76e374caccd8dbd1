"""A game being played: takes a command, returns feedback, and knows the next commands and whether it is won."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from bough.worlds.household import feedback
from bough.worlds.household.game import Game
from bough.worlds.household.goal import met
from bough.worlds.household.world import Action, Commands, World


class GameEngine:
    """One game. After it is won it can still be played, like the original."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.intro = feedback.intro(self.world)

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
            return feedback.NOTHING, None
        self.world.apply(action)
        del self.commands
        self.__dict__.pop("won", None)
        return feedback.after(self.world, action), action


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
