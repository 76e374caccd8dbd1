"""Members that play: one engine on the population's own base model with an adapter per row, for fitness and for GRPO.

    OUTPUT/rollouts/generation-00003/NAME/          a member's episodes: a collection, as `bough collect` writes it
    OUTPUT/rollouts/generation-00003-winner/NAME/   those of the last measurement

Fitness is success or reward on the same tasks with the same seeds for all members. Episodes that were finished
before a kill are not played again.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any, TypeVar

from bough.chat.template import CallBuilder, ChatTemplate
from bough.config.groups import AgentConfig, CollectConfig, SamplingConfig
from bough.config.training import TrainingConfig
from bough.engines.chat import TemplateEngine
from bough.engines.local.engine import AdapterEngine, LocalEngine
from bough.environments.base import Environment, configured, identity, is_for_training, task_family, tasks_of
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.rubric import Rubric, score
from bough.errors import InputError, RowError
from bough.event_loop import BackgroundLoop
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.generation import Generation, Score, on_common_tasks
from bough.files import derived_seed, json_digest
from bough.ledger import Ledger, plural
from bough.methods.grpo import GRPOConfig, OnlineGRPO
from bough.online.gather import FlatGroups
from bough.online.player import LostError
from bough.policy.adapters import AdapterWeights
from bough.policy.population import Population
from bough.rollouts.collect import (
    AllLostError,
    Attempt,
    Collection,
    Finished,
    LocalRunner,
    Runner,
    Tally,
    attempts,
    collect,
)
from bough.rollouts.episode import ModelAgent
from bough.rollouts.ray_pool import WorkerLostError
from bough.training.method import CallSource, Example
from bough.types import Group, Task, Trajectory

log = logging.getLogger(__name__)
T = TypeVar("T")
# Gets the number of finished episodes and of all that are being played.
Report = Callable[[int, int], None]


class TaskCycle:
    """Tasks by number. Where they run out, the first comes again."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._rest = tasks
        self.known: list[Task] = []

    def reaches(self, count: int) -> bool:
        """Whether there are this many different tasks."""
        self.known += islice(self._rest, max(0, count - len(self.known)))
        return len(self.known) >= count

    def slice(self, begin: int, count: int) -> list[Task]:
        """The tasks from number `begin` on: `count` of them, or as many as there are."""
        self.reaches(begin + count)
        size = len(self.known)
        return [self.known[(begin + number) % size] for number in range(min(count, size))]


class Playground(ABC):
    """The environment with its tasks, and a loop to play on. `report` is told how many episodes are finished.

    Where members are trained on tasks, `lessons` are those that they learn from; `selection` are others.
    `trained` are the identities of tasks that training files have records of: `selection` goes without them.
    """

    def __init__(
        self,
        config: EvolveConfig,
        environment_class: type[Environment] | None = None,
        trained: frozenset[str] = frozenset(),
    ) -> None:
        self.config, self.trained = config, trained
        found = find(config.environment.name) if environment_class is None else environment_class
        self.environment_class = configured(found, config.environment.options)
        self.report: Report = lambda _done, _total: None
        self._loop = BackgroundLoop()
        self.lessons = TaskCycle(iter(()))
        self.selection = TaskCycle(task for task in self._own_tasks() if self.identity(task) not in trained)
        if config.method == "grpo":
            to_learn = partial(is_for_training, by_content=config.environment.task_file is not None)
            self.lessons = TaskCycle(filter(to_learn, self._own_tasks()))
            self.selection = TaskCycle(filterfalse(to_learn, self._own_tasks()))

    @abstractmethod
    def playing(self) -> AbstractContextManager[None]:
        """Around everything that samples."""

    @abstractmethod
    def runners(self, generation: Generation | None, sampling: Mapping[str, SamplingConfig]) -> Mapping[str, Runner]:
        """What plays the attempts of each member named here; None stands for the members in memory."""

    def identity(self, task: Task) -> str:
        """What is the same for a task that members learn from, are selected on or are measured on."""
        return identity(task, by_content=self.config.tasks_by_content)

    def _own_tasks(self) -> Iterator[Task]:
        return self._tasks(self.config.environment.split, self.config.environment.task_file)

    def test_tasks(self) -> Iterator[Task]:
        """The tasks of the last measurement; those of a careless environment are not all different from the others."""
        return self._tasks(self.config.fitness.test_split, self.config.fitness.test_task_file)

    def _tasks(self, split: str, file: Path | None) -> Iterator[Task]:
        options, seed = self.config.environment.options, self.config.seed
        return tasks_of(self.environment_class, options=options, split=split, task_file=file, seed=seed)

    def check_tasks(self) -> None:
        """InputError unless there are tasks to be selected on, and with GRPO others to learn from."""
        if self.selection.reaches(1) and (self.config.method != "grpo" or self.lessons.reaches(1)):
            return
        number, environment = sum(1 for _ in self._own_tasks()), self.config.environment
        if not number:
            raise InputError("no task matches these settings")
        lacking = "training" if self.selection.known else "selection"
        raise InputError(
            f"{environment.task_file or f'the split {environment.split}'} has {plural(number, 'task')}, of which none "
            f"is left for {lacking}: members are selected on other tasks than those that they are trained on (with "
            "grpo about half of them each); give another split or more tasks"
        )

    async def collect(
        self, runners: Mapping[str, Runner], wanted: Mapping[str, Sequence[Attempt]], keep: Callable[[str], Finished]
    ) -> dict[str, Tally | None]:
        """Plays the wanted attempts of all members at the same time; None where a worker of a cluster was lost."""
        fitness, done, total = self.config.fitness, Counter[str](), sum(map(len, wanted.values()))

        def tell(name: str, tally: Tally) -> None:
            done[name] = tally.episodes + len(tally.lost)
            self.report(done.total(), total)

        async def played(name: str, left: Sequence[Attempt]) -> Tally | None:
            try:
                return await collect(
                    runners[name], left, keep(name), tell=partial(tell, name),
                    retries=fitness.retries, concurrency=max(1, fitness.concurrency // len(wanted)),
                )  # fmt: skip
            except WorkerLostError:  # the episodes of other members are played to their end first
                return None

        tallies = await asyncio.gather(*(played(name, left) for name, left in wanted.items()))
        return dict(zip(wanted, tallies, strict=True))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the players' event loop."""
        return self._loop.run(work)

    def close(self) -> None:
        """Ends the loop."""
        self._loop.close()


class Players(Playground):
    """Agents for the members, in one engine that is made when it is first needed.

    `training_bytes` are what it leaves free of a GPU's memory: its pages stay while the members learn.
    """

    def __init__(
        self,
        config: EvolveConfig,
        population: Population,
        template: ChatTemplate,
        environment_class: type[Environment] | None = None,
        trained: frozenset[str] = frozenset(),
        *,
        training_bytes: int = 0,
    ) -> None:
        super().__init__(config, environment_class, trained)
        self.population, self.template, self.training_bytes = population, template, training_bytes
        self._engine: LocalEngine | None = None
        self._in_engine: set[str] = set()

    def runners(
        self,
        generation: Generation | None,  # noqa: ARG002
        sampling: Mapping[str, SamplingConfig],
    ) -> dict[str, LocalRunner]:
        """An agent for each member named here, with its present adapter; all members are in memory."""
        policy = self.population.policy
        if self._engine is None:
            # Its own adapters are never folded into the base: they belong to members. It keeps room for the
            # episodes that can be played at the same time, and leaves the rest of a GPU's memory to training.
            most = max(self.config.fitness.concurrency, self.config.population.size)
            self._engine = LocalEngine.of(
                policy,
                name=self.config.model,
                tokenizer=self.template.tokenizer,
                max_running=most,
                fold=False,
                training_bytes=self.training_bytes,
            )
        for name in self._in_engine - self.population.members.keys():
            self._engine.remove_adapter(name)  # else the engine would keep every member that ever lived
        for name, weights in AdapterWeights.of_each(policy.model, sampling).items():
            self._engine.set_adapter(name, weights)
        self._in_engine = (self._in_engine & self.population.members.keys()) | sampling.keys()
        found = {}
        for name, own in sampling.items():
            engine = TemplateEngine(AdapterEngine(self._engine, name), self.template, own, name=name)
            found[name] = LocalRunner.of(self.environment_class, ModelAgent(engine), self.config.limits)
        return found

    @contextmanager
    def playing(self) -> Iterator[None]:
        """The base model is the engine's within it, and the trainer's after it."""
        policy = self.population.policy
        training = policy.training
        policy.eval()
        self.population.lora.segments = ()  # the engine has the adapters by name
        try:
            yield
        finally:
            if self._engine is not None:
                self._engine.rest()
            policy.train(training)

    def close(self) -> None:
        """Closes the engine, the environment and the loop."""
        if self._engine is not None:
            self._loop.run(self._engine.close())
        self._loop.run(shut_down(self.environment_class))
        super().close()


class PlayedFitness:
    """Lets members play, all the same tasks."""

    def __init__(self, config: EvolveConfig, players: Playground, folder: Path) -> None:
        """InputError, before anything is trained, unless there are tasks to learn from, to select on and to test on."""
        self.config, self.players, self.folder = config, players, folder
        self.rubric = Rubric(config.rewards) if config.rewards and config.metric == "reward" else None
        players.check_tasks()
        population, fitness, environment = config.population, config.fitness, config.environment
        test = set(map(players.identity, islice(players.test_tasks(), fitness.tasks)))
        # Most environments have other tasks in each split. Where these have the same, some must be left in the end.
        if test and not test & self._used(1, population.steps):
            return
        generations, updates = population.generations, population.generations * population.steps
        if population.halving:
            generations = (population.size - 1).bit_length()  # at most
            updates = population.steps * (2**generations - 1)
        used = self._used(generations, updates)
        if not any(players.identity(task) not in used for task in players.test_tasks()):
            raise InputError(
                f"{fitness.test_task_file or f'the split {fitness.test_split}'} has no task to measure the winner on: "
                f"in {plural(generations, 'generation')}, members would be trained or selected on "
                f"{plural(len(used), 'task')} of {environment.task_file or f'the split {environment.split}'}, which "
                "are all that there are; give others with test_task_file"
            )

    def of(self, generation: Generation) -> dict[str, Score]:
        """The success of all members. Every generation plays other tasks, as long as there are any."""
        number = generation.number
        tasks, seed = self._selection_tasks(number), self.config.seed + number
        if number and not self.players.selection.reaches((number + 1) * len(tasks)):
            log.warning(
                "Generation %d is selected on tasks that an earlier one was selected on: there are only %d.",
                number, len(self.players.selection.known),
            )  # fmt: skip
        return self._played(generation, generation.members, tasks, seed, f"generation-{number:05}")

    def of_winner(self, generation: Generation, name: str) -> Score:
        """The success of one member on tasks that no member was trained or selected on."""
        tasks = self._test_tasks(generation.number + 1, generation.individual(name).step)
        if not tasks:
            log.warning("The winner cannot be measured: every task of the test has been used before.")
        folder = f"generation-{generation.number:05}-winner"
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
        config, wanted = self.config, list(attempts(tasks, 1, seed))
        with self.players.playing(), ExitStack() as opened:
            collections = {}
            for name in names:
                weights = str(generation.folder(name).absolute())
                settings = CollectConfig(
                    environment=config.environment, sampling=config.sampling, limits=config.limits,
                    agent=AgentConfig(model=weights), output=self.folder / folder / name, seed=seed,
                    tasks=config.fitness.tasks, rescore=0,
                )  # fmt: skip
                collections[name] = opened.enter_context(Collection(settings))
            lost: dict[str, str] = {}
            while missing := {name: left for name, one in collections.items() if (left := one.missing(wanted))}:
                runners = self.players.runners(generation, dict.fromkeys(missing, config.sampling))
                keep = {name: one.add_in_thread for name, one in collections.items()}
                tallies = self.players.run(self.players.collect(runners, missing, keep.__getitem__))
                found = {name: tally for name, tally in tallies.items() if tally is not None}
                lost = {f"{name}, {id}": why for name, tally in found.items() for id, why in tally.lost.items()}
                if len(found) == len(tallies):  # else a worker of a cluster was lost
                    break
            scores = {name: self._score(one, wanted) for name, one in collections.items()}
        if not wanted:
            return scores
        scores = on_common_tasks(scores)
        if not any(score.values for score in scores.values()):
            if lost:
                raise AllLostError(lost)
            raise InputError(f"no episode of {config.environment.name} has a {config.metric} to compare")
        return scores

    def _score(self, collection: Collection, wanted: Sequence[Attempt]) -> Score:
        """The successes or rewards of the wanted episodes; one without a known value counts as lost."""
        asked = {attempt.id for attempt in wanted}
        records = [record for record in collection if record.id in asked]
        if self.rubric is not None:
            records = self.rubric.score_all(records)
        rate = self.config.metric == "success"
        found = {one.id: one.success if rate else score(one) for one in records}
        values = {id: float(value) for id, value in found.items() if value is not None}
        tokens = sum(int(str(one.info.get("completion_tokens", 0))) for one in records)
        families = {one.id: family for one in records if (family := task_family(one.task)) is not None}
        return Score(values, rate=rate, lost=len(wanted) - len(values), tokens=tokens, families=families)


# Groups of attempts that members play themselves, for GRPO: the same tasks for all, each at its own temperature.
# Nothing is sampled ahead: a batch is played with the weights that learn from it. After a kill the generation's
# batches are played again; on a CPU they are the same to the last bit.


class GroupLessons:
    """Plays the groups of an update, those of all members at the same time. `tokens` were sampled for them."""

    def __init__(self, config: EvolveConfig, players: Players, builder: CallBuilder) -> None:
        self.config, self.players, self.builder, self.tokens = config, players, builder, 0
        self._rubrics: dict[str, Rubric] = {}
        self.flat = FlatGroups()

    def batches(self, pupils: Mapping[str, tuple[TrainingConfig, int]], update: int) -> dict[str, Sequence[Example]]:
        """The groups of each member that has some to learn from, by the members' settings."""
        settings = {name: config for name, (config, _) in pupils.items() if isinstance(config, GRPOConfig)}
        with self.players.playing():
            runners = self.players.runners(None, {name: own.sampling for name, own in settings.items()})
            played = self._played(runners, settings, update)
        unused: Counter[str] = Counter()
        found = {name: self._examples(settings[name], groups, unused) for name, groups in played.items()}
        self.flat.warn()
        if unused.total():
            reasons = ", ".join(f"{count} {reason}" for reason, count in unused.most_common())
            log.warning("Update %d: groups were dropped: %s.", update, reasons)
        return {name: examples for name, examples in found.items() if examples}

    def _played(
        self, runners: Mapping[str, Runner], settings: Mapping[str, GRPOConfig], update: int
    ) -> dict[str, list[Group]]:
        """The groups of each member, in the order of the attempts, whichever episode ended first."""
        seed = derived_seed(self.config.seed, f"update {update}")
        wanted = {
            name: list(attempts(self._tasks(update, own.optimizer.batch_size), own.rollouts.group_size, seed))
            for name, own in settings.items()
        }
        records: dict[str, dict[str, Trajectory]] = {name: {} for name in settings}

        def keep(name: str) -> Finished:
            return lambda record, _: records[name].update({record.id: record})

        tallies = self.players.run(self.players.collect(runners, wanted, keep))
        found, all_lost = dict[str, list[Group]](), list[str]()
        for name, tally in tallies.items():
            assert tally is not None  # there is no cluster
            self.tokens += tally.completion_tokens
            by_task: dict[str, list[Trajectory]] = {}
            tasks = {one.task.id: one.task for one in wanted[name] if one.id in records[name]}
            for one in wanted[name]:
                if one.id in records[name]:
                    by_task.setdefault(one.task.id, []).append(records[name][one.id])
            found[name] = [Group(task=task, attempts=by_task[id]) for id, task in tasks.items()]
            if not found[name]:  # its weights may have diverged; those of the others have not
                why = next(iter(tally.lost.values()))
                log.warning("Update %d: %s lost all of its episodes: %s.", update, name, why)
                all_lost += [f"{name}, {id}: {why}" for id, why in tally.lost.items()]
        if not any(found.values()):
            raise LostError(0, all_lost)
        return found

    def _tasks(self, update: int, count: int) -> list[Task]:
        """The tasks of an update. All members begin with the same one; where tasks run out, the first comes again."""
        return self.players.lessons.slice(update * self.config.set_batch_size, count)

    def _examples(self, config: GRPOConfig, groups: Sequence[Group], unused: Counter[str]) -> list[Example]:
        method, rubric = OnlineGRPO(config), None
        if config.rewards:  # the same weights have one rubric, whose judges keep their answers
            key = json_digest(config.rewards, size=8)
            if key not in self._rubrics:
                self._rubrics[key] = Rubric(config.rewards, timeout_s=config.reward_timeout_s)
            rubric = self._rubrics[key]
        found: list[Example] = []
        for group in groups:
            attempts = group.attempts if rubric is None else rubric.score_all(group.attempts)
            scored, reason = group.model_copy(update={"attempts": attempts}), ""
            try:
                found.append(method.example(scored, CallSource(self.builder, Ledger("calls"))))
            except RowError as error:
                reason = error.reason
                unused[reason] += reason != "zero_variance"  # there is advice for it
            self.flat.note(scored, reason)
        return found
