"""TextArena's games: `textarena:GuessTheNumber-v0`, or `textarena:TicTacToe-v0` against random moves."""

from __future__ import annotations

import copy
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product
from typing import Any, ClassVar

import textarena
from pydantic import Field
from textarena import GAME_ID, ObservationType
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from bough.chat.actions import spoken
from bough.chat.tool_calls import Reply
from bough.config.base import Config
from bough.environments.adapters.names import seeded_tasks, subclass
from bough.environments.base import Environment, EnvironmentFailedError, Observation
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


# Legal moves: those that a copy of the game accepts, of the forms that its texts show in brackets.

MOVE = re.compile(r"\[([^\[\]\n]{1,30})\]")
NUMBER = re.compile(r"\d+")
# Of a form with more numbers than this, only a sample of all moves is tried.
MAX_PLACES = 2
MAX_SAMPLED = 200
MAX_TRIED = 2_000
# An attribute with more entries than this is a word list, which no move changes.
MAX_COPIED = 1_000


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
    state, collections = game.state, (Sequence, Set, dict)
    shared: dict[int, Any] = {
        id(value): value for value in vars(game).values() if isinstance(value, collections) and len(value) > MAX_COPIED
    }
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

    class Options(Config):
        """Which tasks to make."""

        player: int | None = Field(None, ge=0, le=1, description="play first (0) or second (1); default: in turns")

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
        self.opponent = random.Random(f"opponent {task.seed}")  # noqa: S311  no secret
        self.seen = self.seen_by_opponent = ""

    def start(self) -> Observation:
        with drawing_from(self.rng):
            self.game.reset(num_players=self.num_players, seed=self.task.seed)
        self._play_opponent()
        if self.game.state.done:
            raise EnvironmentFailedError("the opponent ended the game before the agent's first move")
        return Observation.say(self._read())

    def step(self, reply: Reply) -> Observation:
        text = spoken(reply).strip()
        if len(text) > MAX_REPLY:
            said = f"The reply has {len(text):,} characters; at most {MAX_REPLY:,} are read."
            return Observation.say(said, error="malformed")
        shown = " ".join(IN_BRACKETS.findall(text)) or text
        self._move(text)
        error = "invalid_action" if refused(self.game, self.player) else None
        self._play_opponent()
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

    def _play_opponent(self) -> None:
        """Lets the opponent make random legal moves until it is the agent's turn, or the game is over."""
        for _ in range(MAX_MOVES):
            if self.game.state.done or self.game.state.current_player_id == self.player:
                return
            player, new = self.game.get_observation()
            self.seen_by_opponent += f"\n{self._text(new, player)}"
            found = legal_moves(self.game, self.seen_by_opponent, self.opponent, most=1)
            if not found:
                raise EnvironmentFailedError("the opponent finds no legal move: the game shows none in brackets")
            self._move(found[0])
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
    about = f"{name} of TextArena, for {'one player' if players == 1 else 'two players'}."
    # A refused move is repeated and takes a turn of ours, but none of the game's.
    max_turns = 2 * turns if turns else MAX_TURNS
    return subclass(TextArenaEnvironment, about, game_name=name, num_players=players, max_turns=max_turns)
