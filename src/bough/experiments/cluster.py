"""A population over the workers of a cluster, each with the base model and a part of the members.

The driver has no model. It selects, breeds and writes all files. Workers get members as the bytes of
the generation's files and return them trained; they write nothing but temporary files. The part of
a worker that is lost is done again by the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bough.config.groups import SamplingConfig
from bough.environments import given
from bough.environments.registry import find
from bough.errors import BoughError, InputError
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.generation import DESCRIPTION, OPTIMIZER, Generation, Individual, Records, Score
from bough.experiments.members import Each, Members, Trained, members_here
from bough.experiments.playing import Playground
from bough.files import open_file
from bough.ledger import plural
from bough.policy.adapters import start_adapter
from bough.policy.load import load_call_builder
from bough.rollouts.collect import Attempt, Images, LocalRunner
from bough.rollouts.ray import connected, make_plan, nodes
from bough.rollouts.ray_pool import Actors, ReadyWorker, WorkerPool
from bough.rollouts.ray_workers import Surroundings, pack_code, refusal
from bough.types import Trajectory

# Work that every worker dies of is given up after this many times.
MAX_LOSSES = 5

Notify = Callable[[str], None]
# The files of a member by their names.
Files = dict[str, bytes]


@contextmanager
def members_on_cluster(config: EvolveConfig, records: Records, notify: Notify) -> Iterator[SpreadMembers]:
    """Connects to the cluster of the settings. Its workers begin to load the base model."""
    with connected(config.cluster):
        plan = make_plan(config.cluster, nodes(), concurrency=config.population.size, uses_gpu=True)
        notify(
            f"cluster of {plan.cluster}: {plural(config.population.size, 'member')} on "
            f"{plural(plan.workers, 'worker, which loads', 'workers, which load')} the model first"
        )
        made_of = (config, records, packed_code(config), Surroundings.here(gpus=plan.gpus_per_worker))
        pool = WorkerPool.on_ray(
            Part, made_of, plan,
            most=config.fitness.concurrency, spare_calls=1, timeout_s=config.cluster.timeout_s, say=notify,
        )  # fmt: skip
        with closing(Actors(pool)) as actors, spread(config, actors, records.tasks) as members:
            yield members


@contextmanager
def spread(config: EvolveConfig, actors: Actors, trained: frozenset[str] = frozenset()) -> Iterator[SpreadMembers]:
    """What trains and measures the members on the workers `actors`, whose objects are `Part`s."""
    players = SpreadPlayers(config, actors, trained) if config.environment.name else None
    with closing(players) if players is not None else nullcontext():
        yield SpreadMembers(actors, players)


# In a worker: the base model and some of the members.


def packed_code(config: EvolveConfig) -> bytes:
    """The user's code that members need: the environment's class and the rewards that a program gave."""
    environment_class = find(config.environment.name) if config.environment.name else None
    rewards = {name: one for name, one in given.REWARDS.items() if name in config.rewards}
    classes = [] if environment_class is None else [environment_class]
    whose = "the code of the environment or of a reward"
    return pack_code((environment_class, rewards), [*classes, *rewards.values()], whose)


class TrainedPart(NamedTuple):
    """What a part did in a generation. `updates` are the members' losses, update by update."""

    done: Trained
    files: dict[str, Files]
    updates: list[dict[str, float]]


class Part:
    """Some members of a population, in memory. `start` comes before everything else."""

    start_adapter: Path | None
    _here: Members

    def __init__(self, config: EvolveConfig, records: Records, code: bytes, surroundings: Surroundings) -> None:
        self._config, self._records, self._code, self._surroundings = config, records, code, surroundings
        self._open, self._playing = ExitStack(), ExitStack()
        self._runners: dict[str, LocalRunner] = {}

    def start(self) -> str | None:
        """Loads the base model; returns why this node cannot have members, None if it can."""
        try:
            self._surroundings.enter()
            environment_class, rewards = pickle.loads(self._code)  # noqa: S301  what the driver has packed
            given.REWARDS.update(rewards)
            if environment_class is not None and (lacks := environment_class.lacks()):
                raise InputError(lacks)
            config = self._config
            self.start_adapter, base = start_adapter(trained_by(config, {}))
            builder = load_call_builder(
                config.model, base.calls.chat_template, max_length=base.calls.max_length, stride=base.calls.stride
            )
            here = members_here(config, base, self.start_adapter, builder, self._records, environment_class)
            self._here = self._open.enter_context(here)
        except Exception as error:
            return refusal(error)
        return None

    def close(self) -> None:
        """Releases the model, and what the environment's episodes share."""
        self._playing.close()
        self._open.close()

    def found(self, founders: Sequence[Individual]) -> dict[str, Files]:
        """New members of the first generation."""
        with TemporaryDirectory() as folder:
            self._here.trainees.found(founders, self.start_adapter, Path(folder))
            return _files(Path(folder))

    def train(self, members: Mapping[str, Files], generation: int, first: int, steps: int) -> TrainedPart:
        """The updates of a generation for these members."""
        self._load(members)
        updates: list[dict[str, float]] = []
        done = self._here.trainees.train(generation, first, steps, each=lambda _, losses: updates.append(dict(losses)))
        with TemporaryDirectory() as folder:
            self._here.trainees.save(Path(folder))
            return TrainedPart(done, _files(Path(folder)), updates)

    def measured(self, members: Mapping[str, Files], final: bool) -> dict[str, Score]:
        """The scores of members on the records for selection, or on those of the last measurement."""
        self._load(members)
        records = self._records.test if final else self._records.selection
        return self._here.file_fitness.measured(list(members), records)

    def begin_playing(self, members: Mapping[str, Files], sampling: Mapping[str, SamplingConfig]) -> None:
        """These members are going to play; `end_playing` must come before anything else."""
        self._load(members)
        players = self._here.players
        assert players is not None
        self._playing.enter_context(players.playing())
        self._runners = players.runners(None, sampling)

    def end_playing(self) -> None:
        self._runners = {}
        self._playing.close()

    def play(self, name: str, attempt: Attempt, episode: str | None) -> tuple[Trajectory, Images]:
        """Plays an attempt with one of the members that play."""
        assert self._here.players is not None
        return self._here.players.run(self._runners[name].play(attempt, episode=episode))

    def _load(self, members: Mapping[str, Files]) -> None:
        with TemporaryDirectory() as folder:
            for name, files in members.items():
                write_files(files, Path(folder) / name)
            self._here.trainees.load(Generation(Path(folder), number=0, trained=False))


def _files(folder: Path) -> dict[str, Files]:
    return {member.name: read_files(member) for member in sorted(folder.iterdir())}


def read_files(folder: Path) -> Files:
    """All files of a member's folder, which has no folders inside."""
    found = {}
    for path in sorted(folder.iterdir()):
        with open_file(path) as file:
            found[path.name] = file.read()
    return found


def write_files(files: Files, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


# In the driver: the same as `Trainees`, `FileFitness` and `Players`, over all workers.


def work(workers: Actors, names: Sequence[str], start: Callable[[ReadyWorker, list[str]], Any]) -> list[Any]:
    """Results for all members, dealt out evenly: `start` begins the work of a worker on its share of them.

    The share of a worker that is lost is done again by the others.
    """
    results, left, losses = list[Any](), list(names), 0
    while left:
        chosen = dealt(left, workers.living())
        done = workers.gather({worker: start(worker, own) for worker, own in chosen.items()})
        results.extend(done.values())
        left = [name for worker, own in chosen.items() if worker not in done for name in own]
        losses = 0 if done else losses + 1
        if losses >= MAX_LOSSES:
            raise BoughError(f"all workers of the cluster were lost {losses} times in a row; the last error is above")
    return results


def dealt(names: Sequence[str], workers: Sequence[ReadyWorker]) -> dict[ReadyWorker, list[str]]:
    """The members of each worker: no share is larger than another by more than one, and none is empty."""
    return {worker: list(names[at :: len(workers)]) for at, worker in enumerate(workers[: len(names)])}


def _members(generation: Generation, names: Sequence[str]) -> dict[str, Files]:
    return {name: read_files(generation.folder(name)) for name in names}


class SpreadMembers:
    """As `Members`, on the workers: it is called as `Trainees` and as `FileFitness`."""

    def __init__(self, workers: Actors, players: SpreadPlayers | None) -> None:
        self.workers, self.players = workers, players
        self.trainees = self.file_fitness = self
        self.generation: Generation | None = None
        self._files: dict[str, Files] = {}

    def found(self, founders: Sequence[Individual], start: Path | None, draft: Path) -> None:  # noqa: ARG002
        """Writes the first generation. Workers find the adapter `start` in the settings, as the driver did."""
        known, workers = {founder.name: founder for founder in founders}, self.workers
        for files in work(workers, list(known), lambda w, own: workers.start(w, "found", [known[n] for n in own])):
            self._files |= files
        self.save(draft)

    def load(self, generation: Generation) -> None:
        """Members of `generation` are those that are trained next; workers get them when they work on them."""
        self.generation, self._files = generation, {}

    def train(self, generation: int, first: int, steps: int, *, each: Each = lambda _done, _losses: None) -> Trained:
        """The updates of all members. `each` gets their losses when all workers have finished."""
        assert self.generation is not None
        before, names = self.generation, self.generation.members

        def start(worker: ReadyWorker, own: list[str]) -> Any:
            return self.workers.start(worker, "train", _members(before, own), generation, first, steps)

        finished: list[TrainedPart] = work(self.workers, names, start)
        for done in range(steps):
            each(done + 1, {name: loss for one in finished for name, loss in one.updates[done].items()})
        losses: dict[str, float] = {}
        for one in finished:
            self._files |= one.files
            losses |= one.done.losses
        return Trained(
            {name: losses[name] for name in names},
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
        files = self._files.get(name) or read_files(self.generation.folder(name))
        write_files({key: one for key, one in files.items() if key not in (DESCRIPTION, OPTIMIZER)}, folder)

    def of(self, generation: Generation) -> dict[str, Score]:
        return self._measured(generation, generation.members, final=False)

    def of_winner(self, generation: Generation, name: str) -> Score:
        return self._measured(generation, [name], final=True)[name]

    def _measured(self, generation: Generation, names: Sequence[str], *, final: bool) -> dict[str, Score]:
        def start(worker: ReadyWorker, own: list[str]) -> Any:
            return self.workers.start(worker, "measured", _members(generation, own), final)

        found = {name: score for scores in work(self.workers, names, start) for name, score in scores.items()}
        return {name: found[name] for name in names}


class SpreadPlayers(Playground):
    """Lets members play on the workers. It is called as `Players` is."""

    def __init__(self, config: EvolveConfig, workers: Actors, trained: frozenset[str] = frozenset()) -> None:
        super().__init__(config, trained=trained)
        self.workers = workers
        self._busy: list[ReadyWorker] = []

    def runners(
        self, generation: Generation | None, sampling: Mapping[str, SamplingConfig]
    ) -> dict[str, _MemberRunner]:
        assert generation is not None
        for _ in range(MAX_LOSSES):
            self._end()
            chosen = dealt(sorted(sampling), self.workers.living())
            started = {}
            for worker, own in chosen.items():
                settings = {name: sampling[name] for name in own}
                started[worker] = self.workers.start(worker, "begin_playing", _members(generation, own), settings)
            self._busy = list(self.workers.gather(started))
            if len(self._busy) == len(chosen):
                return {
                    name: _MemberRunner(self.workers, worker, name) for worker, own in chosen.items() for name in own
                }
        raise BoughError(f"workers of the cluster were lost {MAX_LOSSES} times while they loaded members")

    @contextmanager
    def playing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """The workers that play stop doing so, and can load and train members again."""
        busy = [worker for worker in self._busy if not worker.lost.is_set()]
        self.workers.gather({worker: self.workers.start(worker, "end_playing") for worker in busy})
        self._busy = []


class _MemberRunner:
    """Plays attempts with a member on its worker. WorkerLostError where that is lost."""

    def __init__(self, workers: Actors, worker: ReadyWorker, name: str) -> None:
        self.workers, self.worker, self.name = workers, worker, name

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        started = self.workers.start(self.worker, "play", self.name, attempt, episode)
        played: tuple[Trajectory, Images] = await self.workers.result(started)
        return played
