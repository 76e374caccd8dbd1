"""What samples from the policy in training: in this process the local engine, or vLLM."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from bough.chat.template import ChatTemplate
from bough.config.training import OnlineConfig
from bough.engines.base import Generated, TokenEngine
from bough.engines.chat import TemplateEngine
from bough.engines.local.engine import LocalEngine
from bough.event_loop import BackgroundLoop
from bough.policy.policy import Policy
from bough.policy.recorded import uses_dropout
from bough.rollouts.collect import Attempt
from bough.rollouts.episode import ModelAgent
from bough.training.plan import training_bytes

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Samples between `renew`, after the weights have changed, and `pause`, before they are used otherwise.

    One that `overlaps` has a copy of the weights and samples after `pause`, too.
    """

    @property
    def overlaps(self) -> bool:
        """Whether it samples while the policy trains."""

    @property
    def worker_losses(self) -> int:
        """Worker processes that were lost so far."""

    def renew(self, name: str) -> None:
        """From now on samples from the policy as it is; records call these weights `name`. EngineError if it cannot."""

    def pause(self) -> None:
        """Waits until the policy, and the memory it trains in, are free for other uses."""

    async def close(self) -> None:
        """Shuts down."""


class TokenSampler(Sampler, Protocol):
    """A sampler in this process."""

    @property
    def tokens(self) -> TokenEngine:
        """The engine that episodes are played with."""


class LocalSampler:
    """The local engine.

    With `max_staleness` 0 it reads the very weights that are trained. With more it has a copy of
    them, on a GPU a stream of its own too, gets the new ones between two of its steps, and what is in
    flight continues with them.
    """

    worker_losses = 0

    def __init__(self, config: OnlineConfig, policy: Policy, template: ChatTemplate) -> None:
        self._ahead = config.rollouts.max_staleness > 0
        self.overlaps = self._ahead and not _collides(config, policy)
        self.tokens = LocalEngine.of(
            policy,
            tokenizer=template.tokenizer,
            max_length=config.calls.max_length,
            max_running=config.rollouts.concurrency,
            training_bytes=_training_bytes(config, policy),
            apart=self.overlaps,
        )
        if self.tokens.twin and not policy.has_adapter:
            log.warning(
                "The sampler keeps its own copy of all weights (%.2f GB), so that it samples while the policy trains.",
                self.tokens.twin.num_bytes / 1e9,
            )

    def renew(self, name: str) -> None:
        if self._ahead:
            self.tokens.pause()  # between two of its steps
        self.tokens.renew(name, keep=self._ahead)
        if self._ahead:
            self.tokens.resume()
        else:
            self.tokens.rest()

    def pause(self) -> None:
        if self.overlaps:
            return
        if self._ahead:
            self.tokens.pause()
        else:
            self.tokens.rest()

    async def close(self) -> None:
        await self.tokens.close()


def open_sampler(config: OnlineConfig, policy: Policy, template: ChatTemplate, loop: BackgroundLoop) -> TokenSampler:
    """The sampler that the settings name. `loop` is the event loop that episodes are played on."""
    if config.sampled_by.engine == "local":
        return LocalSampler(config, policy, template)
    from bough.online.vllm import open_vllm

    return open_vllm(config, policy, template, loop)


def _training_bytes(config: OnlineConfig, policy: Policy) -> int:
    """What the engine leaves to training on a GPU: its pages stay in memory while the policy learns."""
    if policy.device.type != "cuda":
        return 0
    budget, checkpointing = config.machine.token_budget, config.machine.gradient_checkpointing
    assert budget is not None, "a run has chosen it"
    return training_bytes(policy.base, budget, adapter=policy.has_adapter, gradient_checkpointing=checkpointing)


def _collides(config: OnlineConfig, policy: Policy) -> bool:
    """Whether sampler and trainer must not compute at the same time. Said once if so."""
    if policy.device.type != "cuda":
        return False
    # Both would use the GPU's random numbers, or wait for all of it, while the engine records its graphs.
    hindrances = {"--cuda-graphs": config.machine.cuda_graphs, "dropout": uses_dropout(policy.model)}
    found = [name for name, holds in hindrances.items() if holds]
    if found:
        log.warning("The sampler waits while the policy trains: it cannot sample beside %s.", " and ".join(found))
    return bool(found)


class TemperatureAgents:
    """Says who plays an attempt: the model at the attempt's temperature."""

    def __init__(self, config: OnlineConfig, tokens: TokenEngine, template: ChatTemplate) -> None:
        sampling, held_out = config.sampling, config.held_out
        self._engines = {
            temperature: TemplateEngine(tokens, template, sampling.model_copy(update={"temperature": temperature}))
            for temperature in {sampling.temperature, held_out.temperature}
        }

    def __call__(self, attempt: Attempt, tokens: TokenEngine | None = None) -> ModelAgent:
        """The agent, on the tokens of another engine if one is given."""
        assert attempt.temperature is not None
        engine = self._engines[attempt.temperature]
        return ModelAgent(engine if tokens is None else engine.over(tokens))


# Where the time of an online run goes: sampling, training or neither, and how much is sampled meanwhile.


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

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        self._meter.request()
        num_tokens = 0
        try:
            drawn = await self._engine.generate(episode, prompt_ids, **asked)
            num_tokens = len(drawn.completion_ids)
            return drawn
        finally:
            self._meter.answer(num_tokens)

    @property
    def generate_each(self) -> Callable[..., AsyncGenerator[tuple[list[int], Generated]]]:
        """AttributeError where the engine has none."""
        inner: Callable[..., AsyncGenerator[tuple[list[int], Generated]]] = self._engine.generate_each  # type: ignore[attr-defined]

        async def metered(episodes: Sequence[str], *given: Any, **asked: Any) -> Any:
            left = len(episodes)
            for _ in episodes:
                self._meter.request()
            try:
                async with aclosing(inner(episodes, *given, **asked)) as each:
                    async for places, drawn in each:
                        left -= len(places)
                        for _ in places:
                            self._meter.answer(len(drawn.completion_ids))
                        yield places, drawn
            finally:
                for _ in range(left):
                    self._meter.answer(0)

        return metered

    def release(self, episode: str) -> None:
        self._engine.release(episode)

    async def close(self) -> None:
        await self._engine.close()
