"""Episodes that the members of a population play themselves, for `population.py`: one engine, an adapter per row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from episodes import Episode, Lengths, Source

from bough.config.groups import SamplingConfig
from bough.curation.advantages import group_advantages
from bough.engines.local.engine import LocalEngine
from bough.policy.adapters import AdapterWeights
from bough.policy.population import Population
from bough.training.method import Example, GroupExample
from bough.types import Call


class Players:
    """Plays a group of attempts at one task for each member, with made-up observations and sampled answers."""

    def __init__(
        self, population: Population, names: Sequence[str], *, group: int, rounds: int, lengths: Lengths
    ) -> None:
        self.population, self.lengths = population, lengths
        source = Source(population.policy.base.config.vocab_size)
        self.tasks = {name: source.attempts(group, rounds, lengths) for name in names}
        self.advantages = group_advantages([float(i % 3 == 0) for i in range(group)], normalise=True).values
        longest = lengths.start + rounds * (lengths.answer + round(1.4 * lengths.observation))
        population.lora.segments = ()  # the engine tries the model out, and has the adapters by name
        running = max(2, group * len(names))
        self.engine = LocalEngine.of(
            population.policy,
            max_running=running,
            max_length=longest,
            max_tokens=running * (longest + 64),
            fold=False,
        )

    def batches(self, names: Sequence[str]) -> Mapping[str, Sequence[Example]]:
        """What each member learns from, sampled with the weights that it has now."""
        policy = self.population.policy
        policy.eval()
        self.population.lora.segments = ()
        for name, weights in AdapterWeights.of_each(policy.model, names).items():
            self.engine.set_adapter(name, weights)
        played = asyncio.run(self._play(names))
        self.engine.rest()
        policy.train()
        return {name: [self._example(played[name])] for name in names}

    def close(self) -> None:
        asyncio.run(self.engine.close())

    async def _play(self, names: Sequence[str]) -> dict[str, list[list[Call]]]:
        groups = [
            asyncio.gather(*(self._attempt(name, number, one) for number, one in enumerate(self.tasks[name])))
            for name in names
        ]
        return dict(zip(names, await asyncio.gather(*groups), strict=True))

    async def _attempt(self, name: str, number: int, episode: Episode) -> list[Call]:
        sampling = SamplingConfig(max_new_tokens=self.lengths.answer)
        ids, calls = list(episode.start), []
        for turn, one in enumerate(episode.rounds):
            drawn = await self.engine.generate(
                f"{number}", ids, sampling=sampling, seed=1000 * number + turn, stop_ids=[], adapter=name
            )
            calls.append(Call(prompt_ids=ids, completion_ids=drawn.completion_ids, logprobs=drawn.logprobs))
            ids = ids + drawn.completion_ids + one.observation
        self.engine.release(f"{number}", adapter=name)
        return calls

    def _example(self, attempts: Sequence[list[Call]]) -> GroupExample:
        spread = [float(a) for a, calls in zip(self.advantages, attempts, strict=True) for _ in calls]
        calls = [call for own in attempts for call in own]
        trained = sum(len(call.completion_ids) for call in calls)
        return GroupExample(
            calls=calls, advantages=tuple(spread), weights=(1.0,) * len(calls), denominator=float(trained)
        )
