"""What samples from the policy in training: the local engine over the same weights, or vLLM with a copy of them."""

from __future__ import annotations

from typing import Protocol

from bough.calls.template import ChatTemplate
from bough.engines.base import TokenEngine
from bough.engines.local.engine import LocalEngine
from bough.event_loop import BackgroundLoop
from bough.methods.distill import OnlineConfig
from bough.policy.policy import Policy


class Sampler(Protocol):
    """Samples between `renew`, after the weights have changed, and `pause`, before they are used otherwise."""

    @property
    def tokens(self) -> TokenEngine:
        """The engine that episodes are played with."""

    def renew(self, name: str) -> None:
        """From now on samples from the policy as it is; records call these weights `name`. EngineError if it cannot."""

    def pause(self) -> None:
        """Waits until the policy, and the memory it trains in, are free for other uses."""

    async def close(self) -> None:
        """Shuts down."""


class LocalSampler:
    """The local engine over the very weights that are trained.

    With `keep`, answers may be in flight while the policy trains: they wait, and continue with
    the new weights.
    """

    def __init__(self, config: OnlineConfig, policy: Policy, template: ChatTemplate) -> None:
        self.keep = config.rollouts.max_staleness > 0
        self.tokens = LocalEngine.of(
            policy,
            tokenizer=template.tokenizer,
            max_length=config.calls.max_length,
            max_running=config.rollouts.concurrency,
        )

    def renew(self, name: str) -> None:
        self.tokens.renew(name, keep=self.keep)
        if self.keep:
            self.tokens.resume()
        else:
            self.tokens.rest()

    def pause(self) -> None:
        if self.keep:
            self.tokens.pause()
        else:
            self.tokens.rest()

    async def close(self) -> None:
        await self.tokens.close()


def open_sampler(config: OnlineConfig, policy: Policy, template: ChatTemplate, loop: BackgroundLoop) -> Sampler:
    """The sampler that the settings name. `loop` is the event loop that episodes are played on."""
    if config.sampler.engine == "local":
        return LocalSampler(config, policy, template)
    from bough.online.vllm_sampler import open_vllm

    return open_vllm(config, policy, template, loop)
