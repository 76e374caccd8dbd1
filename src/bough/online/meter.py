"""Where the time of an online run goes: sampling, training or neither, and how much is sampled meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bough.engines.base import Generated, StreamingTokenEngine, TokenEngine


class Meter:
    """Adds up time and tokens between two laps. May be used from any thread.

    Time counts as sampling while the engine has a request; unless sampling overlaps with
    training, not while the policy trains. Time in which both happen counts as both, and as overlap.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, overlaps: bool = False) -> None:
        self._clock, self._lock, self._overlaps = clock, threading.Lock(), overlaps
        self._requests = self._episodes = 0
        self._in_training = False
        self._since = clock()
        self._reset()

    def request(self) -> None:
        with self._lock:
            self._advance()
            self._requests += 1

    def answer(self, num_tokens: int) -> None:
        """A request has ended, with this many sampled tokens."""
        with self._lock:
            self._advance()
            self._requests -= 1
            self._tokens += num_tokens

    def episodes(self, count: int) -> None:
        """This many episodes are in flight from now on."""
        with self._lock:
            self._advance()
            self._episodes = count

    def training(self, now: bool) -> None:
        """The policy is in training from now on, or no longer."""
        with self._lock:
            self._advance()
            self._in_training = now

    def lap(self) -> dict[str, float]:
        """The numbers since the last lap."""
        with self._lock:
            self._advance()
            seconds = max(self._seconds, 1e-9)
            values = {
                "batch_seconds": self._seconds,
                "sampled_tokens_per_s": self._tokens / seconds,
                "sampling_share": self._sampling / seconds,
                "training_share": self._training / seconds,
                "overlap_share": self._overlap / seconds,
                "idle_share": max(0.0, 1 - (self._sampling + self._training - self._overlap) / seconds),
                "episodes_in_flight": self._episode_seconds / seconds,
            }
            self._reset()
            return values

    def _reset(self) -> None:
        self._seconds = self._sampling = self._training = self._overlap = self._episode_seconds = 0.0
        self._tokens = 0

    def _advance(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        self._seconds += passed
        self._episode_seconds += passed * self._episodes
        samples = self._requests > 0 and (self._overlaps or not self._in_training)
        self._sampling += passed * samples
        self._training += passed * self._in_training
        self._overlap += passed * (samples and self._in_training)


class MeteredEngine:
    """A token engine whose requests a meter sees."""

    def __init__(self, engine: TokenEngine, meter: Meter) -> None:
        self._engine, self._meter = engine, meter

    @property
    def policy(self) -> str:
        return self._engine.policy

    @property
    def streams(self) -> bool:
        return isinstance(self._engine, StreamingTokenEngine) and self._engine.streams

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        self._meter.request()
        num_tokens = 0
        try:
            drawn = await self._engine.generate(episode, prompt_ids, **asked)
            num_tokens = len(drawn.completion_ids)
            return drawn
        finally:
            self._meter.answer(num_tokens)

    def release(self, episode: str) -> None:
        self._engine.release(episode)

    async def close(self) -> None:
        await self._engine.close()
