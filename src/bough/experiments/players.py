"""The members as players: one engine on the population's own base model, an adapter per row, and the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any, TypeVar

from bough.chat.template import ChatTemplate
from bough.config.groups import SamplingConfig
from bough.engines.chat import TemplateEngine
from bough.engines.local.engine import AdapterEngine, LocalEngine
from bough.environments.base import Environment
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured, identity, is_for_training, tasks_of
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.generation import Generation
from bough.ledger import plural
from bough.policy.adapters import AdapterWeights
from bough.policy.population import Population
from bough.rollouts.agents import ModelAgent
from bough.rollouts.collect import Tally
from bough.rollouts.runner import LocalRunner, Runner
from bough.types import Task

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


class Playground:
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
        untrained = (task for task in self._own_tasks() if self.identity(task) not in trained)
        self.lessons, self.selection = TaskCycle(iter(())), TaskCycle(untrained)
        if config.method == "grpo":
            to_learn = partial(is_for_training, by_content=config.environment.task_file is not None)
            self.lessons = TaskCycle(filter(to_learn, self._own_tasks()))
            self.selection = TaskCycle(filterfalse(to_learn, self._own_tasks()))

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
        number = sum(1 for _ in self._own_tasks())
        if not number:
            raise InputError("no task matches these settings")
        environment = self.config.environment
        where = environment.task_file or f"the split {environment.split}"
        if self.config.method != "grpo":
            raise InputError(
                f"{where} has {plural(number, 'task')}, and the training data have records of all of them; members "
                "are selected on others: give another split or task_file"
            )
        lacking = "training" if self.selection.known else "selection"
        raise InputError(
            f"{where} has {plural(number, 'task')}, of which none is left for {lacking}: a digest of its id, family "
            "or content says whether members learn from a task or are selected on it, about half of them each; give "
            "more tasks"
        )

    def counting(self, total: int) -> Callable[[str], Callable[[Tally], None]]:
        """Of each member, what its tally is given to: adds up the episodes of all, `total` in the end, and reports."""
        done: Counter[str] = Counter()

        def of(name: str) -> Callable[[Tally], None]:
            def tell(tally: Tally) -> None:
                done[name] = tally.episodes + len(tally.lost)
                self.report(done.total(), total)

            return tell

        return of

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

    def agents(self, sampling: Mapping[str, SamplingConfig]) -> dict[str, ModelAgent]:
        """An agent for each member named here, with its present adapter."""
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
        return {
            name: ModelAgent(TemplateEngine(AdapterEngine(self._engine, name), self.template, own, name=name))
            for name, own in sampling.items()
        }

    def runners(self, generation: Generation, sampling: Mapping[str, SamplingConfig]) -> dict[str, Runner]:  # noqa: ARG002
        """What plays the attempts of each member named here; those of `generation` are in memory."""
        agents = self.agents(sampling)
        return {name: LocalRunner.of(self.environment_class, one, self.config.limits) for name, one in agents.items()}

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Around everything that samples: the base model is the engine's within it, and the trainer's after it."""
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
