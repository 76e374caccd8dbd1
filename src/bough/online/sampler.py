"""What samples from the policy in training: in this process the local engine, or vLLM."""

from __future__ import annotations

import logging
from typing import Protocol

from bough.calls.template import ChatTemplate
from bough.engines.base import TokenEngine
from bough.engines.local.engine import LocalEngine
from bough.event_loop import BackgroundLoop
from bough.methods.distill import OnlineConfig
from bough.policy.policy import Policy
from bough.policy.recorded import uses_dropout
from bough.training.token_budget import training_bytes

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
    if config.sampler.engine == "local":
        return LocalSampler(config, policy, template)
    from bough.online.vllm_sampler import open_vllm

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
