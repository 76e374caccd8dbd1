"""One adapter of a local engine as an engine of its own, for chats: several of them are sampled in one batch.

red = TemplateEngine(AdapterEngine(engine, "red"), template, sampling)
"""

from __future__ import annotations

from collections.abc import Callable

from bough.config.sampling import SamplingConfig
from bough.engines.base import Generated
from bough.engines.local.engine import LocalEngine


class AdapterEngine:
    """A `StreamingTokenEngine` that computes every episode with the adapter `name` of an engine that others use too."""

    streams = True

    def __init__(self, engine: LocalEngine, name: str) -> None:
        self.engine, self.name = engine, name

    @property
    def policy(self) -> str:
        return f"{self.engine.policy}+{self.name}" if self.name else self.engine.policy

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seed: int,
        stop_ids: list[int],
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Generated:
        return await self.engine.generate(
            episode,
            prompt_ids,
            sampling=sampling,
            seed=seed,
            stop_ids=stop_ids,
            adapter=self.name,
            on_tokens=on_tokens,
        )

    def release(self, episode: str) -> None:
        self.engine.release(episode, adapter=self.name)

    async def close(self) -> None:
        """Leaves the engine open: whoever made it closes it."""
