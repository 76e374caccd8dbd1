"""Opponents in games for two: one that makes random legal moves, and a fixed model on a server."""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Protocol

from bough.environments.adapters.textarena_modules import drawing_from
from bough.environments.base import EnvironmentFailedError

MOVE = re.compile(r"\[([^\[\]\n]{1,30})\]")
NUMBER = re.compile(r"\d+")
# Of a form with more numbers than this, only a sample of all moves is tried.
MAX_PLACES = 2
MAX_SAMPLED = 200
MAX_TRIED = 2_000
# An attribute with more entries than this is a word list, which no move changes.
MAX_COPIED = 1_000
MAX_TOKENS = 512
RANDOM = "random"


class Opponent(Protocol):
    """Plays against the agent."""

    async def move(self, game: Any, seen: str) -> str:
        """The next move, after reading `seen`."""


class RandomOpponent:
    """Makes legal moves at random. Legal is what the game accepts, tried on a copy of it."""

    def __init__(self, seed: int | None) -> None:
        self.rng = random.Random(f"opponent {seed}")  # noqa: S311  no secret
        self.seen = ""

    async def move(self, game: Any, seen: str) -> str:
        self.seen += f"\n{seen}"
        if found := legal_moves(game, self.seen, self.rng, most=1):
            return found[0]
        raise EnvironmentFailedError("the random opponent finds no legal move; let a model be the opponent")


class ModelOpponent:
    """A fixed model on an OpenAI-compatible server, sampled greedily. Its failures are the environment's."""

    def __init__(self, url: str, model: str, key_variable: str, timeout_s: float) -> None:
        self.url, self.model, self.key_variable, self.timeout_s = url.rstrip("/"), model, key_variable, timeout_s
        self.messages: list[dict[str, str]] = []

    async def move(self, game: Any, seen: str) -> str:  # noqa: ARG002
        import httpx2

        from bough.environments.adapters.limited_http import limited_client

        self.messages.append({"role": "user", "content": seen})
        key = os.environ.get(self.key_variable)
        asked = {"model": self.model, "messages": self.messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        try:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with limited_client(headers=headers, timeout=self.timeout_s) as client:
                answer = await client.post(f"{self.url}/chat/completions", json=asked)
            answer.raise_for_status()
            said = answer.json()["choices"][0]["message"]["content"]
        except (httpx2.HTTPError, httpx2.StreamError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise EnvironmentFailedError(f"the opponent at {self.url} gave no move: {error!r:.200}") from error
        if not isinstance(said, str):
            raise EnvironmentFailedError(f"the opponent at {self.url} gave no text")
        self.messages.append({"role": "assistant", "content": said})
        return said.rpartition("</think>")[2].strip()


def legal_moves(game: Any, seen: str, rng: random.Random, *, most: int) -> list[str]:
    """Up to `most` moves that the game accepts, of the forms that its texts show in brackets."""
    candidates = list(dict.fromkeys(_candidates(seen, rng)))
    rng.shuffle(candidates)
    found = list[str]()
    for move in candidates[:MAX_TRIED]:
        if len(found) == most:
            break
        if _accepts(game, move):
            found.append(move)
    return found


def _candidates(seen: str, rng: random.Random) -> Iterator[str]:
    """The moves in brackets, and the same with other numbers: `[3 2]` stands for all pairs of digits."""
    for form in dict.fromkeys(MOVE.findall(seen)):
        yield f"[{form}]"
        pieces = NUMBER.split(form)
        places = len(pieces) - 1
        every: Iterable[tuple[int, ...]] = product(range(21 if places == 1 else 10), repeat=places)
        if places > MAX_PLACES:
            every = [tuple(rng.randrange(10) for _ in range(places)) for _ in range(MAX_SAMPLED)]
        for chosen in every:
            yield "[" + "".join(f"{piece}{number}" for piece, number in zip(pieces, [*chosen, ""], strict=True)) + "]"


def _accepts(game: Any, move: str) -> bool:
    state = game.state
    shared: dict[int, Any] = {id(value): value for value in vars(game).values() if _is_word_list(value)}
    # What was said so far is long, and no rule reads it.
    shared |= {id(state.logs): [], id(state.observations): {player: [] for player in state.observations}}
    trial, player = copy.deepcopy(game, shared), state.current_player_id
    try:
        with drawing_from(random.Random(0)):  # noqa: S311  no secret
            trial.step(move)
    except Exception:
        return False
    return not refused(trial, player)


def refused(game: Any, player: int) -> bool:
    """Whether the game did not accept the last move of `player`."""
    state = game.state
    if state.done:
        return bool(state.game_info[player].get("invalid_move"))
    return bool(state.current_player_id == player and getattr(state, "error_count", 0))


def _is_word_list(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset | dict) and len(value) > MAX_COPIED
