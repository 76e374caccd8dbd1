"""Members in this process: the base model, and what trains and measures the members on it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bough.chat.builder import CallBuilder
from bough.chat.template import ChatTemplate
from bough.config.groups import SamplingConfig
from bough.config.training import TrainingConfig
from bough.environments import given
from bough.environments.base import Environment
from bough.environments.registry import find
from bough.errors import BoughError, InputError
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.generation import (
    DESCRIPTION,
    Files,
    Generation,
    Individual,
    Records,
    Score,
    adapter,
    description,
    read_files,
    write_files,
)
from bough.experiments.lessons import GroupLessons, Lessons, RecordLessons
from bough.experiments.members import FileFitness, Trained, Trainees, method_of
from bough.experiments.players import Players, Playground
from bough.ledger import plural
from bough.policy.adapters import start_adapter
from bough.policy.load import base_and_adapter, load_call_builder, load_model
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.policy.processes import Processes, return_freed_memory
from bough.rollouts.ray import connected, make_plan, nodes
from bough.rollouts.ray_pool import Actor, Actors, WorkerPool
from bough.rollouts.ray_workers import Surroundings, pack_code, refusal
from bough.rollouts.runner import Attempt, Images, LocalRunner, Runner
from bough.training.plan import choose_budget, training_bytes
from bough.training.run import precision
from bough.types import Trajectory


@dataclass(frozen=True)
class MembersHere:
    """`players` is None where there is no environment; `file_fitness` has no records where there is one."""

    trainees: Trainees
    file_fitness: FileFitness
    players: Players | None
    actors: None = None


@contextmanager
def members_here(
    config: EvolveConfig,
    base: TrainingConfig,
    start: Path | None,
    builder: CallBuilder,
    records: Records,
    environment_class: type[Environment] | None = None,
) -> Iterator[MembersHere]:
    """Loads the base model. `base` are the method's settings before mutations, `start` is the adapter to refer to.

    `environment_class` is that of the settings, where it cannot be found by its name.
    """
    processes = Processes()
    population = _population(base, processes.device)
    if start is not None:
        population.refer_to(start)
    budget = base.machine.token_budget or choose_budget(base, processes)
    needed = training_bytes(
        population.policy.base, budget, adapter=True, gradient_checkpointing=base.machine.gradient_checkpointing
    )
    with _players(config, population, builder.template, environment_class, needed) as players:
        lessons: Lessons = RecordLessons(records.train, config.seed)
        if players is not None and config.method == "grpo":
            lessons = GroupLessons(config, players, builder)
        fitness = FileFitness(
            population, method_of(base), records.selection, records.test, metric=config.metric, budget=budget
        )
        yield MembersHere(Trainees(config, population, lessons, budget), fitness, players)


@contextmanager
def _players(
    config: EvolveConfig,
    population: Population,
    template: ChatTemplate,
    environment_class: type[Environment] | None,
    needed: int,
) -> Iterator[Players | None]:
    """Those who play in the environment, and leave training the bytes it needs; None where there is none."""
    if not config.environment.name:
        yield None
        return
    with closing(Players(config, population, template, environment_class, training_bytes=needed)) as players:
        yield players


def _population(base: TrainingConfig, device: torch.device) -> Population:
    """The base model with all its weights frozen, and no members yet."""
    autocast = precision(base, device)
    model = load_model(base_and_adapter(base.model)[0], dtype=autocast or torch.float32, device=device, quantize=False)
    if base.machine.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if device.type == "cpu":
            return_freed_memory()
    return Population(Policy(model, attention=base.machine.attention, autocast=autocast, device=device))


# Which worker of a cluster has which members: shares of equal size, and members stay where they are if they can.

# Work that every worker dies of is given up after this many times.
MAX_LOSSES = 5


def shares(names: Sequence[str], held: Mapping[int, Collection[str]]) -> dict[int, list[str]]:
    """The members of each worker, by its number. `held` are those that a worker has in memory.

    No share is larger than another by more than one. Workers without a share are left out.
    """
    rest, larger = len(names) // len(held), len(names) % len(held)
    found: dict[int, list[str]] = {number: [] for number in held}
    room = dict.fromkeys(held, rest)
    # The larger shares go to those who have the most members already.
    most = sorted(held, key=lambda number: (-sum(name in held[number] for name in names), number))
    room |= dict.fromkeys(most[:larger], rest + 1)
    homeless = []
    for name in names:
        home = next((number for number in held if name in held[number] and len(found[number]) < room[number]), None)
        if home is None:
            homeless.append(name)
        else:
            found[home].append(name)
    for name in homeless:
        found[min((len(own) - room[number], number) for number, own in found.items())[1]].append(name)
    return {number: sorted(own) for number, own in found.items() if own}


class Placement:
    """The members of a population in the memory of workers. A member is known by its name and how far it is trained."""

    def __init__(self, workers: Actors) -> None:
        self.workers = workers
        self._steps: dict[int, dict[str, int]] = {}

    def work(
        self,
        generation: Generation,
        names: Sequence[str],
        start: Callable[[Actor, list[str]], Any],
        *,
        ended: Callable[[Actor, Any], None] = lambda _worker, _result: None,
        each: Callable[[Collection[Actor]], None] = lambda _: None,
    ) -> list[Any]:
        """Results for all members: `start` begins the work of a worker on its share of them, which it has in memory.

        The share of a worker that is lost is done again by the others. `each` is called while they work,
        `ended` with the result of each of them.
        """
        return self._until_done(names, lambda left: self.placed(generation, left), start, ended, each)

    def found(self, founders: Sequence[Individual]) -> list[Any]:
        """The result of `Part.found` for all founders, which no worker has yet."""
        known = {founder.name: founder for founder in founders}

        def place(left: list[str]) -> dict[Actor, list[str]]:
            living = {worker.number: worker for worker in self.workers.living()}
            return {living[number]: own for number, own in shares(left, dict.fromkeys(living, ())).items()}

        return self._until_done(list(known), place, lambda w, own: w.start("found", [known[name] for name in own]))

    def placed(self, generation: Generation, names: Sequence[str]) -> dict[Actor, list[str]]:
        """Workers with their shares of the members, which are in their memory, and no others are."""
        steps = {name: generation.individual(name).step for name in names}
        for _ in range(MAX_LOSSES):
            living = {worker.number: worker for worker in self.workers.living()}
            self._steps = {number: self._steps.get(number, {}) for number in living}
            current = {
                number: [name for name, step in own.items() if steps.get(name) == step]
                for number, own in self._steps.items()
            }
            chosen = {living[number]: own for number, own in shares(names, current).items()}
            moves = {
                worker: own
                for worker, own in chosen.items()
                if self._steps[worker.number].keys() != set(own) or not set(own) <= set(current[worker.number])
            }
            done = self.workers.gather(
                {worker: self._load(worker, generation, own, current[worker.number]) for worker, own in moves.items()}
            )
            self.note({worker: {name: steps[name] for name in moves[worker]} for worker in done})
            if len(done) == len(moves):
                return chosen
        raise BoughError(f"workers of the cluster were lost {MAX_LOSSES} times while they loaded members")

    def note(self, steps: Mapping[Actor, Mapping[str, int]]) -> None:
        """Says how far the members in the memory of workers are trained."""
        self._steps |= {worker.number: dict(own) for worker, own in steps.items()}

    def _until_done(
        self,
        names: Sequence[str],
        place: Callable[[list[str]], dict[Actor, list[str]]],
        start: Callable[[Actor, list[str]], Any],
        ended: Callable[[Actor, Any], None] = lambda _worker, _result: None,
        each: Callable[[Collection[Actor]], None] = lambda _: None,
    ) -> list[Any]:
        results, left, losses = [], list(names), 0
        while left:
            chosen = place(left)
            started = {worker: start(worker, own) for worker, own in chosen.items()}
            done = self.workers.gather(started, lambda busy=started: each(busy))  # type: ignore[misc]
            for worker, result in done.items():
                ended(worker, result)
            results += list(done.values())
            left = [name for worker, own in chosen.items() if worker not in done for name in own]
            losses = 0 if done else losses + 1
            if losses >= MAX_LOSSES:
                raise BoughError(
                    f"all workers of the cluster were lost {losses} times in a row; the last error is above"
                )
        return results

    def _load(self, worker: Actor, generation: Generation, names: Sequence[str], there: Collection[str]) -> Any:
        files = {name: read_files(generation.folder(name)) for name in names}
        return worker.start("load", {n: description(own) if n in there else own for n, own in files.items()})


# Members on a cluster: the connection, the workers, and what trains and measures the members on them.

# Calls that a worker answers while it plays or trains.
SPARE_CALLS = 2

Notify = Callable[[str], None]


@dataclass(frozen=True)
class MembersThere:
    """`players` is None where there is no environment."""

    trainees: SpreadTrainees
    file_fitness: SpreadFileFitness
    players: SpreadPlayers | None
    actors: Actors


@contextmanager
def members_on_cluster(config: EvolveConfig, records: Records, notify: Notify) -> Iterator[MembersThere]:
    """Connects to the cluster of the settings. Its workers begin to load the base model."""
    with connected(config.cluster):
        plan = make_plan(config.cluster, nodes(), concurrency=config.population.size, uses_gpu=True)
        notify(
            f"cluster of {plan.cluster}: {plural(config.population.size, 'member')} on "
            f"{plural(plan.workers, 'worker, which loads', 'workers, which load')} the model first"
        )
        given = (config, records, Code.of(config).pack(), Surroundings.here(gpus=plan.gpus_per_worker))
        max_calls = config.fitness.concurrency + SPARE_CALLS
        pool = WorkerPool.on_ray(Part, given, plan, max_calls=max_calls, timeout_s=config.cluster.timeout_s, say=notify)
        actors = Actors(pool)
        placement = Placement(actors)
        players = SpreadPlayers(config, placement) if config.environment.name else None
        with closing(actors), closing(players) if players is not None else nullcontext():
            yield MembersThere(SpreadTrainees(placement), SpreadFileFitness(placement), players, actors)


# A part of a population in a worker of a cluster: the base model and some of the members.
# Members come and go as the bytes of their files. Nothing is written here but temporary files: all files of the run
# are the driver's.


@dataclass(frozen=True)
class Code:
    """The user's code that members need: what settings name by a path, and what a program gave."""

    environment_class: type[Environment] | None
    rewards: dict[str, Any]

    @classmethod
    def of(cls, config: EvolveConfig) -> Code:
        environment_class = find(config.environment.name) if config.environment.name else None
        return cls(environment_class, {name: one for name, one in given.REWARDS.items() if name in config.rewards})

    def pack(self) -> bytes:
        """The bytes that a worker reads."""
        classes = [] if self.environment_class is None else [self.environment_class]
        return pack_code(self, [*classes, *self.rewards.values()], "the code of the environment or of a reward")

    def enter(self) -> None:
        """Makes it known in this process. InputError where the machine lacks something that the environment needs."""
        given.REWARDS.update(self.rewards)
        if self.environment_class is not None and (lacks := self.environment_class.lacks()):
            raise InputError(lacks)


@dataclass(frozen=True)
class TrainedPart:
    """What a part did in a generation. `updates` are the members' losses, update by update."""

    done: Trained
    files: dict[str, Files]
    updates: list[dict[str, float]]


class Part:
    """Some members of a population, in memory. `start` comes before everything else."""

    start_adapter: Path | None
    _here: MembersHere

    def __init__(self, config: EvolveConfig, records: Records, code: bytes, surroundings: Surroundings) -> None:
        self._config, self._records, self._code, self._surroundings = config, records, code, surroundings
        self._open, self._playing = ExitStack(), ExitStack()
        self._runners: dict[str, LocalRunner] = {}
        self._call, self._updates = 0, list[dict[str, float]]()

    def start(self) -> str | None:
        """Loads the base model; returns why this node cannot have members, None if it can."""
        try:
            self._surroundings.enter()
            code: Code = pickle.loads(self._code)  # noqa: S301  what the driver has packed
            code.enter()
            self._here = self._members(code)
        except Exception as error:
            return refusal(error)
        return None

    def close(self) -> None:
        """Releases the model, and what the environment's episodes share."""
        self._playing.close()
        self._open.close()

    def _members(self, code: Code) -> MembersHere:
        config = self._config
        self.start_adapter, base = start_adapter(trained_by(config, {}))
        builder = load_call_builder(
            config.model, base.calls.chat_template, max_length=base.calls.max_length, stride=base.calls.stride
        )
        here = members_here(config, base, self.start_adapter, builder, self._records, code.environment_class)
        return self._open.enter_context(here)

    def found(self, founders: Sequence[Individual]) -> dict[str, Files]:
        """New members of the first generation."""
        with TemporaryDirectory() as folder:
            self._here.trainees.found(founders, self.start_adapter, Path(folder))
            return _files(Path(folder))

    def load(self, members: Mapping[str, Files]) -> None:
        """Makes these the members in memory. Of one that is there already only the description is needed."""
        with TemporaryDirectory() as folder:
            generation = Generation(Path(folder), number=0, trained=False)
            for name, files in members.items():
                write_files(files, generation.folder(name))
                there = self._here.trainees.individuals.get(name)
                assert there is None or there.step == generation.individual(name).step, f"{name} is trained further"
            self._here.trainees.load(generation)

    def train(self, generation: int, first: int, steps: int, call: int) -> TrainedPart:
        """The updates of a generation for all members in memory; `call` is the number by which `updates` is asked."""
        self._call, self._updates = call, []
        done = self._here.trainees.train(generation, first, steps, each=self._note_update)
        with TemporaryDirectory() as folder:
            self._here.trainees.save(Path(folder))
            return TrainedPart(done, _files(Path(folder)), self._updates)

    def updates(self, call: int) -> list[dict[str, float]]:
        """The losses of the updates that a call of `train` has made so far."""
        return list(self._updates) if call == self._call else []

    def measured(self, names: Sequence[str], final: bool) -> dict[str, Score]:
        """The scores of members in memory on the records for selection, or on those of the last measurement."""
        fitness = self._here.file_fitness
        return fitness.measured(names, fitness.test if final else fitness.selection)

    def begin_playing(self, sampling: Mapping[str, SamplingConfig]) -> None:
        """The members named here are going to play; `end_playing` must come before anything else."""
        players = self._here.players
        assert players is not None
        self._playing.enter_context(players.playing())
        self._runners = {
            name: LocalRunner.of(players.environment_class, agent, players.config.limits)
            for name, agent in players.agents(sampling).items()
        }

    def end_playing(self) -> None:
        self._runners = {}
        self._playing.close()

    def play(self, name: str, attempt: Attempt, episode: str | None) -> tuple[Trajectory, Images]:
        """Plays an attempt with one of the members that play."""
        players = self._here.players
        assert players is not None
        return players.run(self._runners[name].play(attempt, episode=episode))

    def _note_update(self, _: int, losses: Mapping[str, float]) -> None:
        self._updates.append(dict(losses))


def _files(folder: Path) -> dict[str, Files]:
    return {member.name: read_files(member) for member in sorted(folder.iterdir())}


# A population over the workers of a cluster, each with the base model and a part of the members.
# The driver has no model. It selects, breeds and writes all files; workers get members as bytes of the generation's
# files and return them trained. The part of a worker that is lost is done again by others.

Each = Callable[[int, dict[str, float]], None]


class SpreadTrainees:
    """Trains the members of a generation on the workers. It is called as `Trainees` is."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.generation: Generation | None = None
        self._files: dict[str, Files] = {}
        self._calls = 0

    def found(self, founders: Sequence[Individual], start: Path | None, draft: Path) -> None:  # noqa: ARG002
        """Writes the first generation. Workers find the adapter `start` in the settings, as the driver did."""
        for files in self.placement.found(founders):
            self._files |= files
        self.save(draft)

    def load(self, generation: Generation) -> None:
        """Members of `generation` are those that are trained next; workers get them when they work on them."""
        self.generation, self._files = generation, {}

    def train(self, generation: int, first: int, steps: int, *, each: Each = lambda _done, _losses: None) -> Trained:
        """The updates of all members."""
        assert self.generation is not None
        told, workers = _Told(each), self.placement.workers
        finished: list[TrainedPart] = []
        calls: dict[Actor, int] = {}

        def follow(busy: Collection[Actor]) -> None:
            running = workers.gather({worker: worker.start("updates", calls[worker]) for worker in busy})
            told.tell([*(one.updates for one in finished), *running.values()])

        def start(worker: Actor, _: list[str]) -> Any:
            calls[worker] = self._calls = self._calls + 1
            return worker.start("train", generation, first, steps, self._calls)

        def ended(worker: Actor, trained: TrainedPart) -> None:
            finished.append(trained)
            reached = {name: json.loads(own[DESCRIPTION])["step"] for name, own in trained.files.items()}
            self.placement.note({worker: reached})

        self.placement.work(self.generation, self.generation.members, start, ended=ended, each=follow)
        told.tell([one.updates for one in finished])
        losses: dict[str, float] = {}
        for one in finished:
            self._files |= one.files
            losses |= one.done.losses
        return Trained(
            {name: losses[name] for name in self.generation.members},
            tokens=sum(one.done.tokens for one in finished),
            empty=sum(one.done.empty for one in finished),
        )

    def save(self, draft: Path) -> None:
        """Writes every member into its folder, as the workers returned it."""
        for name, files in sorted(self._files.items()):
            write_files(files, draft / name)

    def save_adapter(self, name: str, folder: Path) -> None:
        """Writes the adapter of one member, without its moments."""
        assert self.generation is not None
        write_files(adapter(self._files.get(name) or read_files(self.generation.folder(name))), folder)


class _Told:
    """Passes on the losses of each update once all parts have made it."""

    def __init__(self, each: Each) -> None:
        self.each, self.done = each, 0

    def tell(self, parts: Sequence[Sequence[Mapping[str, float]]]) -> None:
        while parts and all(len(part) > self.done for part in parts):
            losses = {name: loss for part in parts for name, loss in part[self.done].items()}
            self.done += 1
            self.each(self.done, losses)


class SpreadFileFitness:
    """Measures members on records, each on the worker that has it."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def of(self, generation: Generation) -> dict[str, Score]:
        return self._measured(generation, generation.members, final=False)

    def of_winner(self, generation: Generation, name: str) -> Score:
        return self._measured(generation, [name], final=True)[name]

    def _measured(self, generation: Generation, names: Sequence[str], *, final: bool) -> dict[str, Score]:
        found: dict[str, Score] = {}
        for scores in self.placement.work(generation, names, lambda worker, own: worker.start("measured", own, final)):
            found |= scores
        return {name: found[name] for name in names}


class SpreadPlayers(Playground):
    """Lets members play on the workers that have them. It is called as `Players` is."""

    def __init__(self, config: EvolveConfig, placement: Placement) -> None:
        super().__init__(config)
        self.placement = placement
        self._busy: list[Actor] = []

    def runners(self, generation: Generation, sampling: Mapping[str, SamplingConfig]) -> dict[str, Runner]:
        """What plays the attempts of each member named here."""
        workers = self.placement.workers
        while True:
            self._end()
            chosen = self.placement.placed(generation, sorted(sampling))
            started = {
                worker: worker.start("begin_playing", {name: sampling[name] for name in own})
                for worker, own in chosen.items()
            }
            self._busy = list(workers.gather(started))
            if len(self._busy) == len(chosen):
                return {name: _MemberRunner(workers, worker, name) for worker, own in chosen.items() for name in own}

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Around everything that samples."""
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """The workers that play stop doing so, and can load and train members again."""
        busy = [worker for worker in self._busy if not worker.lost]
        self.placement.workers.gather({worker: worker.start("end_playing") for worker in busy})
        self._busy = []


class _MemberRunner:
    """Plays attempts with a member on its worker. WorkerLostError where that is lost."""

    def __init__(self, workers: Actors, worker: Actor, name: str) -> None:
        self.workers, self.worker, self.name = workers, worker, name

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        started = self.worker.start("play", self.name, attempt, episode)
        played: tuple[Trajectory, Images] = await self.workers.result(started)
        return played
