"""TextArena's modules, adapted to many games in one process.

Its games draw from the `random` module, whose state all of them share, and print their
progress. Here every episode has a generator of its own, and nothing is printed: the names
`random` and `print` are replaced in TextArena's modules, and nowhere else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from bough.errors import InputError, did_you_mean, exception_line

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
    _adapt_modules()
    return made, in_brackets


def probe_game(name: str) -> tuple[int, int | None]:
    """How many players a game has, one or two, and its limit of turns. Raises InputError if it cannot be played."""
    if name not in ENV_REGISTRY:
        raise InputError(f"TextArena has no game {name!r}{did_you_mean(name, list(ENV_REGISTRY))}")
    try:
        game, _ = make_game(name)
    except (Exception, SystemExit) as error:
        raise InputError(f"TextArena's game {name} cannot be started: {_short(error)}") from None
    for players in (1, 2):
        try:
            with drawing_from(random.Random(0)):  # noqa: S311  no secret
                game.reset(num_players=players, seed=0)
        except Exception as error:
            problem = _short(error)
            continue
        if players == 2 or isinstance(game.state, textarena.SinglePlayerState):
            return players, game.state.max_turns
        problem = "it needs an opponent"
    raise InputError(f"TextArena's game {name} cannot be played by one or two players: {problem}")


def _adapt_modules() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena" and vars(module).get("random") is random:
            module.__dict__["random"] = _RANDOM
        if name.startswith("textarena.envs."):
            module.__dict__.setdefault("print", lambda *_, **__: None)


def _short(error: BaseException) -> str:
    """NLTK frames its messages with lines of asterisks."""
    words = " ".join(line.strip() for line in exception_line(error, 1000).splitlines() if line.strip(" *"))
    return words.strip()[:160]
