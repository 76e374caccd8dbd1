"""What a run works with: its folder, its records, the population on its base model, and its fitness."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bough.calls.template import ChatTemplate
from bough.cluster.actors import Actors
from bough.config.cluster import ClusterConfig
from bough.config.parts import flattened, leaves
from bough.config.training import TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.errors import InputError
from bough.evolution.generation import Used
from bough.evolution.in_process import MembersHere, members_here
from bough.evolution.inheritance import check_plain
from bough.evolution.member_settings import trained_by
from bough.evolution.on_cluster import MembersThere, Notify, members_on_cluster
from bough.evolution.played_fitness import PlayedFitness
from bough.evolution.players import Players
from bough.evolution.records import Records, TrainingData, read_records
from bough.evolution.score import Fitness
from bough.evolution.settings import EvolveConfig
from bough.evolution.spread import SpreadPlayers, SpreadTrainees
from bough.evolution.trainees import Trainees, method_of
from bough.methods.base import Data
from bough.models.digest import model_digest
from bough.policy.load import base_and_adapter, load_call_builder
from bough.policy.processes import Processes
from bough.policy.reconcile import read_shape
from bough.policy.shape import start_adapter
from bough.rundir import RunDir
from bough.training.origin import Origin, run_of

log = logging.getLogger(__name__)

# Settings that a resumed run may change.
FREE = {
    *("output_dir", "resume", "overwrite", "generations", "max_updates", "max_tokens", "max_minutes"),
    *("concurrency", "retries", "as_json", "report_to", "wandb_project", *leaves(ClusterConfig)),
}


@dataclass
class Setup:
    """Everything that is open during a run. `start` is the adapter that members begin with, `rank` theirs.

    `actors` are the workers of a cluster, if members are on one.
    """

    config: EvolveConfig
    folder: RunDir
    records: Records
    trainees: Trainees | SpreadTrainees
    fitness: Fitness
    template: ChatTemplate
    start: Path | None
    rank: int
    players: Players | SpreadPlayers | None = None
    used: Used = field(default_factory=Used)
    actors: Actors | None = None

    def save(self, name: str, folder: Path) -> None:
        """Writes a member's adapter with the tokenizer: a folder that every command takes as a model."""
        self.trainees.save_adapter(name, folder)
        self.template.tokenizer.save_pretrained(folder)


@contextmanager
def open_setup(
    config: EvolveConfig,
    data: TrainingData | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
    *,
    notify: Notify = lambda _: None,
) -> Iterator[Setup]:
    """The setup of the settings, with the run folder locked. InputError where it cannot be used or resumed."""
    folder, processes = RunDir(config.output_dir), Processes()
    if processes.count > 1:
        raise InputError("bough evolve trains in one process; leave out accelerate launch")
    with folder.locked():
        folder.make_room(resume=config.resume, overwrite=config.overwrite)
        start, base = start_adapter(trained_by(config, {}), may_grow=False)
        if start is not None:
            _check_start(config, start, base)
        if config.resume and folder.config.exists():
            _check_settings(folder, config)
        builder = load_call_builder(
            config.model, base.calls.chat_template, max_length=base.calls.max_length, stride=base.calls.stride
        )
        records = read_records(config, method_of(base), builder, data, held_out, test)
        _begin(folder, config, base, start, records)
        mutation = config.mutation
        if not (mutation.mutate or mutation.rank or mutation.crossover):
            log.warning(
                "Members have the same settings and differ only in the order of their data and in new adapters; "
                "--mutate names settings with their ranges."
            )
        members: AbstractContextManager[MembersHere | MembersThere] = (
            members_here(config, base, start, builder, records)
            if config.cluster.address is None
            else members_on_cluster(config, records, notify)
        )
        with members as found:
            players = found.players
            fitness = found.file_fitness if players is None else PlayedFitness(config, players, folder.rollouts)
            yield Setup(
                config, folder, records, found.trainees, fitness, builder.template, start, base.lora.r, players,
                actors=found.actors,
            )  # fmt: skip


def _check_start(config: EvolveConfig, start: Path, base: TrainingConfig) -> None:
    """InputError for a start adapter with which the settings cannot be kept."""
    if (dropout := read_shape(start).dropout) != base.lora.dropout:
        raise InputError(f"{start} has lora_dropout {dropout}, and members keep it; leave out lora_dropout")
    if config.mutation.rank or config.mutation.crossover:
        check_plain(start)
    # The shapes of two models may be the same, and an adapter means nothing on weights that it was not trained on.
    run, model = run_of(start), base_and_adapter(base.model)[0]
    if run is not None and Origin.read(run).model != model_digest(model):
        raise InputError(
            f"{start} was trained on another model than {model} is now; give that model back its weights, "
            "or start from an adapter that was trained on it"
        )


def _begin(folder: RunDir, config: EvolveConfig, base: TrainingConfig, start: Path | None, records: Records) -> None:
    """Writes settings and origin, checked against those that a resumed run began with."""
    origin = Origin.of(base, start, records.digest, None)
    before = Origin.read(folder) if config.resume and folder.origin.exists() else origin
    if differences := origin.differences(before, base, start):
        raise InputError(f"{folder.path} cannot resume:", differences)
    folder.create(config)
    origin.write(folder)


def _check_settings(folder: RunDir, config: EvolveConfig) -> None:
    """InputError where a resumed run has other settings than it began with: its generations would not be comparable."""
    before = folder.recorded(flattened(type(config), YamlFile.read(folder.config).values))
    now = folder.recorded(config.flat_dump())
    changed = {key: value for key, value in now.items() if key not in FREE and before.get(key) != value}
    if changed:
        said = [f"{key} {before.get(key)} → {value}" for key, value in changed.items()]
        raise InputError(f"{folder.path} began with other settings; give another --output-dir for a new run:", said)
