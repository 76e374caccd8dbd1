"""A population over the workers of a cluster, each with the base model and a part of the members.

The driver has no model. It selects, breeds and writes all files; workers get members as bytes of the
generation's files and return them trained. The part of a worker that is lost is done again by others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bough.cluster.actors import Actor, Actors
from bough.config.sampling import SamplingConfig
from bough.evolution.generation import Generation
from bough.evolution.individual import DESCRIPTION, Individual
from bough.evolution.member_files import Files, adapter, read_files, write_files
from bough.evolution.part import TrainedPart
from bough.evolution.placement import Placement
from bough.evolution.players import Playground
from bough.evolution.score import Score
from bough.evolution.settings import EvolveConfig
from bough.evolution.trainees import Trained
from bough.rollouts.attempt import Attempt
from bough.rollouts.runner import Images, Runner
from bough.types import Trajectory

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
