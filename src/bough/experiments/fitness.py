"""Fitness in an environment: success or reward on the same tasks with the same seeds, all members in one engine.

    OUTPUT/rollouts/generation-00003/NAME/          a member's episodes: a collection, as `bough collect` writes it
    OUTPUT/rollouts/generation-00003-winner/NAME/   those of the last measurement

Episodes that were finished before a kill are not played again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from bough.config.groups import AgentConfig, CollectConfig
from bough.environments.rubric import Rubric, score
from bough.environments.tasks import task_family
from bough.errors import InputError
from bough.experiments.breeding import Scores, ranked
from bough.experiments.cluster import SpreadPlayers
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.generation import Generation, Score, on_common_tasks
from bough.experiments.players import Players
from bough.ledger import plural
from bough.rollouts.collect import AllLostError, Collection, Tally, collect
from bough.rollouts.ray_pool import WorkerLostError
from bough.rollouts.runner import Attempt, Runner, attempts
from bough.types import Task, Trajectory

log = logging.getLogger(__name__)


class PlayedFitness:
    """Lets members play, all the same tasks."""

    def __init__(self, config: EvolveConfig, players: Players | SpreadPlayers, folder: Path) -> None:
        self.config, self.players, self.folder = config, players, folder
        self.rubric = Rubric(config.rewards) if config.rewards and config.metric == "reward" else None
        self._check()

    def _check(self) -> None:
        """Before anything is trained: InputError unless there are tasks to learn from, to select on and to test on."""
        self.players.check_tasks()
        test = set(map(self.players.identity, islice(self.players.test_tasks(), self.config.fitness.tasks)))
        population = self.config.population
        # Most environments have other tasks in each split. Where these have the same, some must be left in the end.
        if test and not test & self._used(1, population.steps):
            return
        generations, updates = population.generations, population.generations * population.steps
        if population.halving:
            generations = (population.size - 1).bit_length()  # at most
            updates = population.steps * (2**generations - 1)
        used = self._used(generations, updates)
        if not any(self.players.identity(task) not in used for task in self.players.test_tasks()):
            fitness, environment = self.config.fitness, self.config.environment
            raise InputError(
                f"{fitness.test_task_file or f'the split {fitness.test_split}'} has no task to measure the winner on: "
                f"in {plural(generations, 'generation')}, members would be trained or selected on "
                f"{plural(len(used), 'task')} of {environment.task_file or f'the split {environment.split}'}, which "
                "are all that there are; give others with test_task_file"
            )

    def of(self, generation: Generation) -> dict[str, Score]:
        """The success of all members. Every generation plays other tasks, as long as there are any."""
        tasks, seed = self._selection_tasks(generation.number), self.config.seed + generation.number
        if generation.number and not self.players.selection.reaches((generation.number + 1) * len(tasks)):
            log.warning(
                "Generation %d is selected on tasks that an earlier one was selected on: there are only %d.",
                generation.number, len(self.players.selection.known),
            )  # fmt: skip
        return self._played(generation, generation.members, tasks, seed, generation_folder(generation))

    def of_winner(self, generation: Generation, name: str) -> Score:
        """The success of one member on tasks that no member was trained or selected on."""
        tasks = self._test_tasks(generation.number + 1, generation.individual(name).step)
        if not tasks:
            log.warning("The winner cannot be measured: every task of the test has been used before.")
        folder = f"{generation_folder(generation)}-winner"
        return self._played(generation, [name], tasks, self.config.seed, folder)[name]

    def _selection_tasks(self, number: int) -> list[Task]:
        """The tasks that generation `number` is compared on."""
        count = self.config.fitness.tasks
        return self.players.selection.slice(number * count, count)

    def _test_tasks(self, generations: int, updates: int) -> list[Task]:
        """The tasks of the last measurement, after so many generations and updates of a member."""
        used = self._used(generations, updates)
        unused = (task for task in self.players.test_tasks() if self.players.identity(task) not in used)
        return list(islice(unused, self.config.fitness.tasks))

    def _used(self, generations: int, updates: int) -> frozenset[str]:
        """What members can have been selected on in this many generations, or trained on in this many updates."""
        tasks = self.players.selection.slice(0, generations * self.config.fitness.tasks)
        if self.config.method == "grpo" and updates:
            count = (updates - 1) * self.config.set_batch_size + self.config.largest_batch_size
            tasks += self.players.lessons.slice(0, count)
        return self.players.trained.union(map(self.players.identity, tasks))

    def _played(
        self, generation: Generation, names: Sequence[str], tasks: Sequence[Task], seed: int, folder: str
    ) -> dict[str, Score]:
        wanted = list(attempts(tasks, 1, seed))
        with self.players.playing(), ExitStack() as opened:
            collections = {
                name: opened.enter_context(Collection(self._settings(generation, name, seed, folder))) for name in names
            }
            lost = self._play(generation, collections, wanted)
            scores = {name: self._score(_known(one, wanted), len(wanted)) for name, one in collections.items()}
        if not wanted:
            return scores
        scores = on_common_tasks(scores)
        if not any(score.values for score in scores.values()):
            if lost:
                raise AllLostError(lost)
            raise InputError(f"no episode of {self.config.environment.name} has a {self.config.metric} to compare")
        return scores

    def _play(
        self, generation: Generation, collections: dict[str, Collection], wanted: Sequence[Attempt]
    ) -> dict[str, str]:
        """Plays what is missing, all members at the same time; returns why episodes were lost."""
        while missing := {name: left for name, one in collections.items() if (left := one.missing(wanted))}:
            runners = self.players.runners(generation, dict.fromkeys(missing, self.config.sampling))
            lost = self.players.run(self._collect(runners, collections, missing))
            if lost is not None:
                return lost
        return {}

    async def _collect(
        self, runners: Mapping[str, Runner], collections: dict[str, Collection], missing: dict[str, list[Attempt]]
    ) -> dict[str, str] | None:
        """Why episodes were lost; None where some are missing because a worker of a cluster was lost."""
        fitness, count = self.config.fitness, self.players.counting(sum(map(len, missing.values())))

        async def played(name: str, left: list[Attempt]) -> Tally | None:
            try:
                return await collect(
                    runners[name], left, collections[name].add_in_thread,
                    retries=fitness.retries, concurrency=max(1, fitness.concurrency // len(missing)),
                    tell=count(name),
                )  # fmt: skip
            except WorkerLostError:  # the episodes of other members are played to their end first
                return None

        tallies = await asyncio.gather(*(played(name, left) for name, left in missing.items()))
        lost: dict[str, str] = {}
        for name, tally in zip(missing, tallies, strict=True):
            if tally is None:
                return None
            lost |= {f"{name}, {id}": why for id, why in tally.lost.items()}
        return lost

    def _score(self, records: list[Trajectory], wanted: int) -> Score:
        """The successes or rewards of the episodes; one without a known value counts as lost."""
        if self.rubric is not None:
            records = self.rubric.score_all(records)
        rate = self.config.metric == "success"
        found = {one.id: one.success if rate else score(one) for one in records}
        values = {id: float(value) for id, value in found.items() if value is not None}
        tokens = sum(int(str(one.info.get("completion_tokens", 0))) for one in records)
        families = {one.id: family for one in records if (family := task_family(one.task)) is not None}
        return Score(values, rate=rate, lost=wanted - len(values), tokens=tokens, families=families)

    def _settings(self, generation: Generation, name: str, seed: int, folder: str) -> CollectConfig:
        """The settings of a member's collection."""
        config, weights = self.config, generation.folder(name).absolute()
        return CollectConfig(
            environment=config.environment, sampling=config.sampling, limits=config.limits,
            agent=AgentConfig(model=str(weights)), output=self.folder / folder / name, seed=seed,
            tasks=config.fitness.tasks, rescore=0,
        )  # fmt: skip


def generation_folder(generation: Generation) -> str:
    return f"generation-{generation.number:05}"


def _known(collection: Collection, wanted: Sequence[Attempt]) -> list[Trajectory]:
    """The wanted episodes that were finished."""
    asked = {attempt.id for attempt in wanted}
    return [record for record in collection if record.id in asked]


# The report about the winner: the fitness it was selected by, and its fitness on what no member was selected on.
# The best of N members is partly the luckiest one, so the first number is too high on average. The difference between
# the two is the shrinkage.


def winner_report(config: EvolveConfig, generation: Generation, scores: Scores, again: Score) -> dict[str, Any]:
    """The content of report.json."""
    name = ranked(scores)[0]
    selected = scores[name]
    shrinkage = selected.fitness - again.fitness
    winner = generation.individual(name)
    return {
        "step": winner.step,
        "winner": winner.described(),
        "metric": config.metric,
        "selected": selected.to_json(),
        "untouched": again.to_json(),
        "shrinkage": shrinkage if math.isfinite(shrinkage) else None,
        "members": len(scores),
        "generations": generation.number + 1,
        "updates": generation.used.updates,
        "empty_updates": generation.used.empty,
        "tokens_computed": generation.used.tokens,
        "seconds": round(generation.used.seconds, 3),
        "weights": "final",
    }
