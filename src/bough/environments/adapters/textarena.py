"""TextArena's games: `textarena:GuessTheNumber-v0`, or `textarena:TicTacToe-v0` against an opponent."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field
from textarena import GAME_ID, ObservationType

from bough.config.base import Config
from bough.environments.adapters.opponents import RANDOM, ModelOpponent, Opponent, RandomOpponent, legal_moves, refused
from bough.environments.adapters.seeds import seeded_tasks
from bough.environments.adapters.textarena_modules import drawing_from, make_game, probe_game
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.speech.functions import spoken
from bough.speech.reply import Reply
from bough.types import Task

MAX_TURNS = 50
# Moves in a row of an opponent: a game that asks for more does not end.
MAX_MOVES = 100
# Moves that the random agent chooses from.
MAX_CHOICES = 8
# Games search replies with patterns that take minutes for a very long one.
MAX_REPLY = 10_000
IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


class TextArenaEnvironment(Environment):
    """A game of TextArena for one player, or for two."""

    game_name: ClassVar[str] = ""
    num_players: ClassVar[int] = 1

    class Settings(Config):
        """The opponent in a game for two."""

        opponent: str = Field(
            RANDOM, description="random legal moves, or the base URL of an OpenAI-compatible server (http://…/v1)"
        )
        opponent_model: str = Field("", description="the model on that server")
        opponent_key_variable: str = Field(
            "OPENAI_API_KEY", description="the environment variable that contains the server's API key"
        )

    class Options(Settings):
        """Which tasks to make, and the opponent."""

        player: int | None = Field(None, ge=0, le=1, description="play first (0) or second (1); default: in turns")

    settings: ClassVar[Settings] = Settings()

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        for number, task in enumerate(seeded_tasks(split, seed, {})):
            player = number % cls.num_players if options.player is None else min(options.player, cls.num_players - 1)
            yield task.model_copy(update={"data": {"player": player}}) if cls.num_players > 1 else task

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.player = int(str(task.data.get("player", 0))) % self.num_players
        self.rng = random.Random(task.seed)  # noqa: S311  no secret
        self.game, self.in_brackets = make_game(self.game_name)
        self.opponent: Opponent = RandomOpponent(task.seed)
        self.seen = ""

    async def start(self) -> Observation:
        if self.settings.opponent != RANDOM:
            settings = self.settings
            self.opponent = ModelOpponent(
                settings.opponent, settings.opponent_model, settings.opponent_key_variable, self.step_timeout_s
            )
        with drawing_from(self.rng):
            self.game.reset(num_players=self.num_players, seed=self.task.seed)
        await self._play_opponent()
        if self.game.state.done:
            raise EnvironmentFailedError("the opponent ended the game before the agent's first move")
        return Observation.say(self._read())

    async def step(self, reply: Reply) -> Observation:
        text = spoken(reply).strip()
        if len(text) > MAX_REPLY:
            said = f"The reply has {len(text):,} characters; at most {MAX_REPLY:,} are read."
            return Observation.say(said, error="malformed")
        shown = " ".join(IN_BRACKETS.findall(text)) or text
        self._move(text)
        error = "invalid_action" if refused(self.game, self.player) else None
        await self._play_opponent()
        if not self.game.state.done:
            return Observation.say(self._read(), action=shown, error=error)
        rewards, info = self.game.close()
        reward = float((rewards or {}).get(self.player, 0.0))
        said = "\n".join(filter(None, [self._read(), str(info[self.player].get("reason") or "")]))
        # A game for one rewards partial progress too, and a won one with 1.
        success = reward >= 1 if self.num_players == 1 else reward > 0
        return Observation.end(said, success=success, reward=reward, action=shown, error=error)

    def choices(self) -> Sequence[str]:
        return legal_moves(self.game, self.seen, random.Random(len(self.seen)), most=MAX_CHOICES)  # noqa: S311

    def _move(self, text: str) -> None:
        if self.in_brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        with drawing_from(self.rng):
            self.game.step(text)

    async def _play_opponent(self) -> None:
        """Lets the opponent move until it is the agent's turn, or the game is over."""
        for _ in range(MAX_MOVES):
            if self.game.state.done or self.game.state.current_player_id == self.player:
                return
            player, new = self.game.get_observation()
            self._move(await self.opponent.move(self.game, self._text(new, player)))
        raise EnvironmentFailedError(f"the opponent has made {MAX_MOVES} moves in a row")

    def _read(self) -> str:
        """What the agent has not seen yet."""
        new = self.game.state.observations[self.player]
        self.game.state.observations[self.player] = []
        text = self._text(new, self.player) or "It is your turn."
        self.seen += f"\n{text}"
        return text

    def _text(self, messages: list[Any], reader: int) -> str:
        roles = self.game.state.role_mapping
        return "\n".join(
            message if sender == GAME_ID else f"[{roles.get(sender, f'Player {sender}')}] {message}"
            for sender, message, kind in messages
            if not (sender == reader and kind == ObservationType.PLAYER_ACTION)
        ).strip()


def adapt(name: str) -> type[Environment]:
    """The game that TextArena has registered under this name."""
    players, turns = probe_game(name)
    more = {
        "__module__": __name__,
        "__doc__": f"{name} of TextArena, for {'one player' if players == 1 else 'two players'}.",
        "game_name": name,
        "num_players": players,
        # A refused move is repeated and takes a turn of ours, but none of the game's.
        "max_turns": 2 * turns if turns else MAX_TURNS,
    }
    return type("TextArenaEnvironment", (TextArenaEnvironment,), more)
