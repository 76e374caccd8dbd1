"""TextArena's games for one player: `textarena:GuessTheNumber-v0`."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import textarena
from textarena import GAME_ID, ObservationType
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from bough.chat.tool_calls import Reply, spoken
from bough.environments.base import Environment, Observation
from bough.environments.registry import seeded_tasks, subclass
from bough.errors import InputError, did_you_mean, exception_line
from bough.types import Task

# TextArena's modules, adapted to many games in one process.
# Its games draw from the `random` module, whose state all of them share, and print their progress. Here every episode
# has a generator of its own, and nothing is printed: the names `random` and `print` are replaced in TextArena's
# modules, and nowhere else.

_generator: ContextVar[random.Random | None] = ContextVar("generator", default=None)


class EpisodeRandom:
    """Stands in for the `random` module: its functions are those of the current episode's generator."""

    def __getattr__(self, name: str) -> Any:
        generator = _generator.get()
        source = random if generator is None or not hasattr(generator, name) else generator
        return getattr(source, name)


_RANDOM = EpisodeRandom()


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """Games drawn from in this block use `generator`."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def make_game(name: str) -> tuple[Any, bool]:
    """A new game without its wrappers, and whether a reply without brackets gets them.

    The wrappers repeat the whole game in every observation; a conversation has it already.
    """
    made = textarena.make(name)
    in_brackets = isinstance(made, textarena.Wrapper) and made.is_wrapped_with(ActionFormattingWrapper)
    while isinstance(made, textarena.Wrapper):
        made = made.env
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "textarena" and vars(module).get("random") is random:
            module.__dict__["random"] = _RANDOM
        if module_name.startswith("textarena.envs."):
            module.__dict__.setdefault("print", lambda *_, **__: None)
    return made, in_brackets


def probe_game(name: str) -> int | None:
    """A game's limit of turns. Raises InputError if one player cannot play it."""
    if name not in ENV_REGISTRY:
        raise InputError(f"TextArena has no game {name!r}{did_you_mean(name, list(ENV_REGISTRY))}")
    problem = "it needs an opponent"
    try:
        game, _ = make_game(name)
        with drawing_from(random.Random(0)):  # noqa: S311  no secret
            game.reset(num_players=1, seed=0)
        if isinstance(game.state, textarena.SinglePlayerState):
            turns: int | None = game.state.max_turns
            return turns
    except (Exception, SystemExit) as error:  # NLTK frames its messages with lines of asterisks
        lines = [line.strip() for line in exception_line(error, 1000).splitlines() if line.strip(" *")]
        problem = " ".join(lines)[:160]
    raise InputError(f"TextArena's game {name} cannot be played by one player: {problem}")


MAX_TURNS = 50
# Games search replies with patterns that take minutes for a very long one.
MAX_REPLY = 10_000
IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


class TextArenaEnvironment(Environment):
    """A game of TextArena for one player."""

    game_name: ClassVar[str] = ""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:  # noqa: ARG003
        yield from seeded_tasks(split, seed, {})

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rng = random.Random(task.seed)  # noqa: S311  no secret
        self.game, self.in_brackets = make_game(self.game_name)

    def start(self) -> Observation:
        with drawing_from(self.rng):
            self.game.reset(num_players=1, seed=self.task.seed)
        return Observation.say(self._read())

    def step(self, reply: Reply) -> Observation:
        text = spoken(reply).strip()
        if len(text) > MAX_REPLY:
            said = f"The reply has {len(text):,} characters; at most {MAX_REPLY:,} are read."
            return Observation.say(said, error="malformed")
        shown = " ".join(IN_BRACKETS.findall(text)) or text
        with drawing_from(self.rng):
            self.game.step(f"[{text}]" if self.in_brackets and "[" not in text and "]" not in text else text)
        state = self.game.state
        if not state.done:
            refused = getattr(state, "error_count", 0)
            return Observation.say(self._read(), action=shown, error="invalid_action" if refused else None)
        rewards, info = self.game.close()
        reward = float((rewards or {}).get(0, 0.0))
        said = "\n".join(filter(None, [self._read(), str(info[0].get("reason") or "")]))
        error = "invalid_action" if state.game_info[0].get("invalid_move") else None
        # Partial progress is rewarded too, and a won game with 1.
        return Observation.end(said, success=reward >= 1, reward=reward, action=shown, error=error)

    def _read(self) -> str:
        """What the agent has not seen yet."""
        new = self.game.state.observations[0]
        self.game.state.observations[0] = []
        said = [
            message if sender == GAME_ID else f"[Player {sender}] {message}"
            for sender, message, kind in new
            if not (sender == 0 and kind == ObservationType.PLAYER_ACTION)
        ]
        return "\n".join(said).strip() or "It is your turn."


def adapt(name: str) -> type[Environment]:
    """The game that TextArena has registered under this name."""
    turns = probe_game(name)
    # A refused move is repeated and takes a turn of ours, but none of the game's.
    max_turns = 2 * turns if turns else MAX_TURNS
    return subclass(TextArenaEnvironment, f"{name} of TextArena, for one player.", game_name=name, max_turns=max_turns)
