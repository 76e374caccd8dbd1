"""One pending call: what was asked, what was drawn so far, and when it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.engines.local.draw import uniform
from bough.types import Finish

Outcome = Generated | BaseException


@dataclass(eq=False)
class Request:
    """A call. `limit` is how many tokens prompt and answer may have together.

    `deliver` receives the outcome, once, and `on_tokens` the tokens before it, as they are drawn;
    `given_up` is set by a caller who no longer waits. `adapter` names the adapter it is computed
    with; the policy as it is has the empty name.
    """

    episode: Hashable
    prompt_ids: list[int]
    sampling: SamplingConfig
    seed: int
    stop_ids: frozenset[int]
    stops: StopTexts
    limit: int
    deliver: Callable[[Outcome], None]
    on_tokens: Callable[[list[int]], None] | None = None
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    given_up: bool = False
    adapter: str = ""
    _uniforms: list[float] = field(default_factory=list)

    @property
    def most(self) -> int:
        """How many tokens it may come to."""
        return min(len(self.prompt_ids) + self.sampling.max_new_tokens, self.limit)

    def after(self, known: int) -> list[int]:
        """The tokens after the first `known`, as far as they exist."""
        if known >= len(self.prompt_ids):
            return self.completion_ids[known - len(self.prompt_ids) :]
        return self.prompt_ids[known:] + self.completion_ids

    def foresee(self, number: int) -> list[float]:
        """The numbers between 0 and 1 with which the next tokens are drawn."""
        done = len(self.completion_ids)
        self._uniforms += [uniform(self.seed, place) for place in range(len(self._uniforms), done + number)]
        return self._uniforms[done : done + number]

    def take(self, drawn: Sequence[tuple[int, float]]) -> Outcome | None:
        """Adds tokens up to the last of the answer; the answer, if it is complete.

        An error if a probability is not a number: the weights have diverged. Other requests have other adapters.
        """
        if any(math.isnan(logprob) for _, logprob in drawn):
            return EngineError(
                "the probabilities of the next token are not numbers: the weights have diverged, "
                "perhaps by too high a learning rate"
            )
        finish: Finish | None = None
        before = len(self.completion_ids)
        left = self.most - len(self.prompt_ids) - len(self.completion_ids)
        for token, logprob in drawn:
            self.completion_ids.append(token)
            self.logprobs.append(logprob)
            left -= 1
            if token in self.stop_ids or (self.stops.texts and self.stops.met(self.completion_ids)):
                finish = "stop"
                break
            if left <= 0:
                finish = "length"
                break
        if self.on_tokens is not None:
            self.on_tokens(self.completion_ids[before:])
        if finish is None:
            return None
        temperature = self.sampling.temperature or 1.0
        return Generated(self.completion_ids, self.logprobs, finish, logprobs_temperature=temperature)


class Delivery:
    """Brings an outcome to the event loop that waits for it."""

    def __init__(self, future: asyncio.Future[Generated], loop: asyncio.AbstractEventLoop) -> None:
        self.future, self.loop = future, loop

    def __call__(self, outcome: Outcome) -> None:
        deliver([(self, outcome)])

    def settle(self, outcome: Outcome) -> None:
        if self.future.done():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


def on_loop(loop: asyncio.AbstractEventLoop, receive: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
    """`receive` as the engine's thread can call it. The calls come in order, before the outcome."""

    def pass_on(tokens: list[int]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(receive, tokens)

    return pass_on


def deliver(outcomes: Iterable[tuple[Callable[[Outcome], None], Outcome]]) -> None:
    """Brings outcomes to those who wait, with one call into each event loop.

    A call wakes the loop's thread, which then takes the interpreter from this one.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Delivery, Outcome]]] = {}
    for receive, outcome in outcomes:
        if isinstance(receive, Delivery):
            by_loop.setdefault(receive.loop, []).append((receive, outcome))
        else:
            receive(outcome)
    for loop, mine in by_loop.items():
        # A loop that was closed meanwhile has no waiter.
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, mine)


def _settle(outcomes: list[tuple[Delivery, Outcome]]) -> None:
    for delivery, outcome in outcomes:
        delivery.settle(outcome)


# Texts that end an answer, looked for while it is being written.

SPARE = 4  # a character cut at the window's edge shows as up to this many others


class StopTexts:
    """Says after each token whether an answer now ends: whether one of `texts` is complete in it.

    The answer keeps the token that completed the text, whole: its ids and its text agree.
    Only the tail is decoded, long enough for the longest text and the newest token.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self.texts, self.tokenizer = [text for text in texts if text], tokenizer
        self._longest = max(map(len, self.texts), default=0)

    def met(self, ids: list[int]) -> bool:
        """Whether the last token of `ids` completed a stop text."""
        if not self.texts:
            return False
        tail = self._tail(ids)
        return any(text in tail for text in self.texts)

    def _tail(self, ids: list[int]) -> str:
        newest = len(self.tokenizer.decode(ids[-1:]))
        window = self._longest + SPARE
        while True:
            text: str = self.tokenizer.decode(ids[-window:])
            if len(text) >= self._longest + newest + SPARE or window >= len(ids):
                return text
            window *= 2
