"""A part of a population in a worker of a cluster: the base model and some of the members.

Members come and go as the bytes of their files. Nothing is written here but temporary files: all
files of the run are the driver's.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bough import given
from bough.cluster.packing import pack_code
from bough.cluster.worker import Surroundings, refusal
from bough.config.sampling import SamplingConfig
from bough.environments.base import Environment
from bough.environments.registry import find
from bough.errors import InputError
from bough.evolution.generation import Generation
from bough.evolution.in_process import MembersHere, members_here
from bough.evolution.individual import Individual
from bough.evolution.member_files import Files, read_files, write_files
from bough.evolution.member_settings import trained_by
from bough.evolution.records import Records
from bough.evolution.score import Score
from bough.evolution.settings import EvolveConfig
from bough.evolution.trainees import Trained
from bough.policy.load import load_call_builder
from bough.policy.shape import start_adapter
from bough.rollouts.attempt import Attempt
from bough.rollouts.runner import Images, LocalRunner
from bough.types import Trajectory


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
