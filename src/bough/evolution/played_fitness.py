"""Fitness in an environment: success on the same tasks with the same seeds, all members in one engine.

    OUTPUT/rollouts/generation-00003/NAME/          a member's episodes: a collection, as `bough collect` writes it
    OUTPUT/rollouts/generation-00003-winner/NAME/   those of the last measurement

The engine samples from the population's own base model; every row of its batch has the adapter of
its member. Episodes that were finished before a kill are not played again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bough.calls.template import ChatTemplate
from bough.config.rollouts import AgentConfig, CollectConfig
from bough.engines.chat import TemplateEngine
from bough.engines.local.adapter_engine import AdapterEngine
from bough.engines.local.engine import LocalEngine
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured, first_tasks, tasks_of
from bough.evaluation.sequential import looks
from bough.event_loop import BackgroundLoop
from bough.evolution.generation import Generation
from bough.evolution.score import Score
from bough.evolution.selection import confident, decided
from bough.evolution.settings import EvolveConfig
from bough.policy.adapter_weights import AdapterWeights
from bough.policy.population import Population
from bough.rollouts.agents import ModelAgent
from bough.rollouts.collect import AllLostError, Attempt, attempts, collect
from bough.rollouts.collection import Collection
from bough.types import Task


class PlayedFitness:
    """Lets members play. With a confident selection, tasks are played until it is decided or there are no more."""

    def __init__(self, config: EvolveConfig, population: Population, template: ChatTemplate, folder: Path) -> None:
        self.config, self.population, self.template, self.folder = config, population, template, folder
        self.environment_class = configured(find(config.environment.name), config.environment.options)
        self._loop = BackgroundLoop()
        self._engine: LocalEngine | None = None

    def of(self, generation: Generation) -> dict[str, Score]:
        """The success of all members. Every generation plays other tasks."""
        environment, seed = self.config.environment, self.config.seed + generation.number
        tasks = self._tasks(environment.split, environment.task_file, seed)
        sequential = self.config.selection.name == "confident" and not self.config.population.halving
        counts = list(looks(len(tasks))) if sequential else [len(tasks)]
        scores: dict[str, Score] = {}
        for count in counts:
            scores = self._played(generation, generation.members, tasks[:count], seed, generation_folder(generation))
            if sequential and decided(confident(scores, alpha=self.config.selection.alpha)):
                break
        return scores

    def of_winner(self, generation: Generation, name: str) -> Score:
        """The success of one member on tasks that no member was selected on."""
        fitness, seed = self.config.fitness, self.config.seed
        tasks = self._tasks(fitness.test_split, fitness.test_task_file, seed)
        return self._played(generation, [name], tasks, seed, f"{generation_folder(generation)}-winner")[name]

    def close(self) -> None:
        """Closes the engine and the environment."""
        if self._engine is not None:
            self._loop.run(self._engine.close())
        self._loop.run(shut_down(self.environment_class))
        self._loop.close()

    def _tasks(self, split: str, file: Path | None, seed: int) -> list[Task]:
        options = self.config.environment.options
        source = tasks_of(self.environment_class, options=options, split=split, task_file=file, seed=seed)
        return first_tasks(source, self.config.fitness.tasks)

    def _played(
        self, generation: Generation, names: Sequence[str], tasks: Sequence[Task], seed: int, folder: str
    ) -> dict[str, Score]:
        policy = self.population.policy
        training = policy.training
        policy.eval()
        self.population.lora.segments = ()  # the engine has the adapters by name
        wanted = list(attempts(tasks, 1, seed))
        try:
            with ExitStack() as opened:
                collections = {
                    name: opened.enter_context(Collection(self._settings(generation, name, seed, folder)))
                    for name in names
                }
                lost = self._loop.run(self._play(collections, wanted))
                scores = {name: _score(one, wanted) for name, one in collections.items()}
        finally:
            if self._engine is not None:
                self._engine.rest()
            policy.train(training)
        if lost and not any(score.values for score in scores.values()):
            raise AllLostError(lost)
        return scores

    async def _play(self, collections: dict[str, Collection], wanted: Sequence[Attempt]) -> dict[str, str]:
        """Plays what is missing, all members at the same time; returns why episodes were lost."""
        missing = {name: one.missing(wanted) for name, one in collections.items()}
        missing = {name: left for name, left in missing.items() if left}
        if not missing:
            return {}
        agents = self._agents(list(missing))
        fitness = self.config.fitness
        playing = [
            collect(
                self.environment_class, agents[name], left, collections[name].add_in_thread,
                limits=self.config.limits, retries=fitness.retries,
                concurrency=max(1, fitness.concurrency // len(missing)),
            )
            for name, left in missing.items()
        ]  # fmt: skip
        tallies = zip(missing, await asyncio.gather(*playing), strict=True)
        return {f"{name}, {id}": why for name, tally in tallies for id, why in tally.lost.items()}

    def _agents(self, names: Sequence[str]) -> dict[str, ModelAgent]:
        """An agent for each member, on one engine with the members' present adapters."""
        policy = self.population.policy
        if self._engine is None:
            # Its own adapters are never folded into the base: they belong to members.
            self._engine = LocalEngine.of(policy, name=self.config.model, tokenizer=self.template.tokenizer, fold=False)
        for name in names:
            self._engine.set_adapter(name, AdapterWeights.of(policy.model, name))
        return {
            name: ModelAgent(
                TemplateEngine(AdapterEngine(self._engine, name), self.template, self.config.sampling, name=name)
            )
            for name in names
        }

    def _settings(self, generation: Generation, name: str, seed: int, folder: str) -> CollectConfig:
        """The settings of a member's collection."""
        config = self.config
        return CollectConfig(
            environment=config.environment, sampling=config.sampling, limits=config.limits,
            agent=AgentConfig(model=str(generation.folder(name))), output=self.folder / folder / name, seed=seed,
            tasks=config.fitness.tasks, rescore=0,
        )  # fmt: skip


def generation_folder(generation: Generation) -> str:
    return f"generation-{generation.number:05}"


def _score(collection: Collection, wanted: Sequence[Attempt]) -> Score:
    """The successes among the wanted episodes; one whose success is unknown counts as lost."""
    asked = {attempt.id for attempt in wanted}
    played = [record for record in collection if record.id in asked]
    values = {record.id: float(record.success) for record in played if record.success is not None}
    tokens = sum(int(str(record.info.get("completion_tokens", 0))) for record in played)
    return Score(values, lost=len(asked) - len(values), tokens=tokens)
