"""The loop over generations: train, measure, select, breed; then the winner is measured once more.

OUTPUT/config.yaml        the settings
OUTPUT/lineage.jsonl      every member of every generation
OUTPUT/metrics.jsonl      one line per generation, about its fittest member
OUTPUT/checkpoints/       the newest generation, to resume from
OUTPUT/final/             the winner's adapter
OUTPUT/report.json        the winner: as selected, and on what no member was selected on
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bough.chat.template import ChatTemplate
from bough.config.base import flattened, leaves
from bough.config.groups import ClusterConfig
from bough.config.run_folder import MetricsFile, RunDir
from bough.config.training import TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.errors import InputError
from bough.experiments.cluster import Notify, SpreadMembers, members_on_cluster
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.generation import (
    Generation,
    Records,
    Score,
    Scores,
    Used,
    breed,
    founders,
    ranked,
    read_records,
    select,
    writing,
)
from bough.experiments.lineage import FILE_NAME, add_generation, generation_lines, read_lineage
from bough.experiments.members import Members, members_here, method_of
from bough.experiments.playing import PlayedFitness
from bough.files import drafting, put_in_place, write_atomically, write_json
from bough.ledger import plural
from bough.models.resolve import model_digest
from bough.policy.adapters import read_shape, start_adapter
from bough.policy.load import base_and_adapter, load_call_builder
from bough.policy.processes import Processes
from bough.terminal.console import MembersProgress
from bough.training.method import Data
from bough.training.run import Origin, run_of
from bough.training.trackers import Trackers

log = logging.getLogger(__name__)

# Settings that a resumed run may change.
FREE = {
    *("output_dir", "resume", "overwrite", "generations", "max_updates", "max_tokens", "max_minutes"),
    *("concurrency", "retries", "as_json", "report_to", "wandb_project", *leaves(ClusterConfig)),
}


@dataclass(frozen=True)
class Evolved:
    """The result: the winner's weights, the report about it, every member's line, and the run's folder."""

    folder: Path
    weights: Path
    report: dict[str, Any]
    lineage: list[dict[str, Any]]
    ledgers: list[dict[str, Any]]


def evolve(
    config: EvolveConfig,
    data: Data | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
    *,
    notify: Notify = lambda _: None,
    watch: MembersProgress | None = None,
) -> Evolved:
    """Evolves a population on the settings' files, or on the records given here. `watch` shows how it proceeds."""
    shown = watch or MembersProgress(None if config.population.halving else config.population.generations)
    with shown, opened(config, data, held_out, test, notify=notify) as evolution:
        tracking, folder = config.tracking, evolution.folder
        settings = folder.recorded(config.flat_dump())
        with Trackers(tracking.report_to, folder.path, tracking.wandb_project, settings) as trackers:
            return evolution.run(shown, trackers)


@contextmanager
def opened(
    config: EvolveConfig,
    data: Data | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
    *,
    notify: Notify = lambda _: None,
) -> Iterator[Evolution]:
    """The run of the settings, with its folder locked. InputError where it cannot be used or resumed."""
    folder = RunDir(config.output_dir)
    if Processes().count > 1:
        raise InputError("bough evolve trains in one process; leave out accelerate launch")
    with folder.locked():
        folder.make_room(resume=config.resume, overwrite=config.overwrite)
        start, base = start_adapter(trained_by(config, {}), may_grow=False)
        if start is not None:
            if (dropout := read_shape(start).dropout) != base.lora.dropout:
                raise InputError(f"{start} has lora_dropout {dropout}, and members keep it; leave out lora_dropout")
            # Two models may have the same shapes; an adapter means nothing on weights that it was not trained on.
            run, model = run_of(start), base_and_adapter(base.model)[0]
            if run is not None and Origin.read(run).model != model_digest(model):
                raise InputError(
                    f"{start} was trained on another model than {model} is now; give that model back its weights, "
                    "or start from an adapter that was trained on it"
                )
        builder = load_call_builder(
            config.model, base.calls.chat_template, max_length=base.calls.max_length, stride=base.calls.stride
        )
        records = read_records(config, method_of(base), builder, data, held_out, test)
        _begin(folder, config, base, start, records)
        if not config.mutation.mutate:
            log.warning(
                "Members have the same settings and differ only in the order of their data and in new adapters; "
                "--mutate names settings with their ranges."
            )
        members: AbstractContextManager[Members | SpreadMembers] = (
            members_here(config, base, start, builder, records)
            if config.cluster.address is None
            else members_on_cluster(config, records, notify)
        )
        with members as found:
            yield Evolution(config, folder, records, found, builder.template, start, base.lora.r, notify)


def _begin(folder: RunDir, config: EvolveConfig, base: TrainingConfig, start: Path | None, records: Records) -> None:
    """Writes settings and origin. InputError where a resumed run began with others: it would not be comparable."""
    origin = Origin.of(base, start, records.digest, None)
    if config.resume and folder.config.exists():
        before = folder.recorded(flattened(type(config), YamlFile.read(folder.config).values))
        now = folder.recorded(config.flat_dump())
        changed = {key: value for key, value in now.items() if key not in FREE and before.get(key) != value}
        if changed:
            said = [f"{key} {before.get(key)} → {value}" for key, value in changed.items()]
            raise InputError(f"{folder.path} began with other settings; give another --output-dir for a new run:", said)
    before_it = Origin.read(folder) if config.resume and folder.origin.exists() else origin
    if differences := origin.differences(before_it, base, start):
        raise InputError(f"{folder.path} cannot resume:", differences)
    folder.create(config)
    origin.write(folder)


@dataclass
class Evolution:
    """A run with everything that is open during it. All that it must remember between generations is in their folders.

    `start` is the adapter that members begin with, `rank` theirs.
    """

    config: EvolveConfig
    folder: RunDir
    records: Records
    members: Members | SpreadMembers
    template: ChatTemplate
    start: Path | None
    rank: int
    notify: Notify

    def __post_init__(self) -> None:
        self.trainees, players = self.members.trainees, self.members.players
        self.lineage = self.folder.path / FILE_NAME
        self.fitness = (
            self.members.file_fitness if players is None else PlayedFitness(self.config, players, self.folder.rollouts)
        )

    def run(self, watch: MembersProgress, trackers: Trackers) -> Evolved:
        self.watch, self.trackers = watch, trackers
        if self.members.players is not None:
            self.members.players.report = watch.played
        generation = Generation.newest(self.folder.checkpoints) if self.config.resume else None
        if generation is None:
            write_atomically(self.lineage, "")  # not that of a run that was overwritten; a viewer waits for its lines
            with writing(self.folder.checkpoints, 0, trained=False, used=Used()) as draft:
                self.trainees.found(founders(self.config, self.rank), self.start, draft)
            generation = Generation.read(self.folder.checkpoints / "generation-00000")
        else:
            self.notify(f"resuming with generation {generation.number}")
        self.trainees.load(generation)
        while True:
            if not generation.trained:
                generation = self._trained(generation)
            generation, scores = self._measured(generation)
            places = None if self._last(generation) else select(self.config, scores, generation.number)
            lines = generation_lines(generation, scores, places)
            add_generation(self.lineage, lines)
            self._log(generation, scores)
            self.watch.measured(lines)
            if places is None:
                return self._finish(generation, scores)
            generation = breed(self.config, generation, places)
            self.trainees.load(generation)

    def _trained(self, generation: Generation) -> Generation:
        """The generation after its updates, in memory and on disk."""
        begin, folder = time.monotonic(), self.folder.checkpoints
        steps, first = self.config.population.steps, self.config.population.steps * generation.number
        if self.config.population.halving:
            steps, first = steps * 2**generation.number, steps * (2**generation.number - 1)
        self.watch.begin(generation.number, _described(generation), steps)
        done = self.trainees.train(generation.number, first, steps, each=self.watch.updated)
        made, seconds = steps * len(done.losses) - done.empty, time.monotonic() - begin
        used = generation.used.plus(updates=made, tokens=done.tokens, seconds=seconds, empty=done.empty)
        with writing(folder, generation.number, trained=True, used=used, losses=done.losses) as draft:
            self.trainees.save(draft)
        return Generation.read(folder / f"generation-{generation.number:05}-trained")

    def _measured(self, generation: Generation) -> tuple[Generation, Scores]:
        """The scores of the members, and the generation with what measuring has used up."""
        begin = time.monotonic()
        self.watch.measuring(generation.number, _described(generation))
        scores = self.fitness.of(generation)
        tokens = sum(score.tokens for score in scores.values())
        used = generation.used.plus(tokens=tokens, seconds=time.monotonic() - begin)
        return replace(generation, used=used), scores

    def _last(self, generation: Generation) -> bool:
        """Whether no generation comes after this one."""
        config, used = self.config, generation.used
        if config.population.halving and len(generation.members) <= 2:
            return True
        limits = (
            (config.budget.max_updates, used.updates + used.empty),
            (config.budget.max_tokens, used.tokens),
            (config.budget.max_minutes, used.seconds / 60),
        )
        spent = any(limit is not None and value >= limit for limit, value in limits)
        return spent or (not config.population.halving and generation.number + 1 >= config.population.generations)

    def _log(self, generation: Generation, scores: Scores) -> None:
        best = ranked(scores)[0]
        individual, interval = generation.individual(best), scores[best].interval()
        count = plural(len(scores), "member")
        fitness = f"{self.config.metric} {scores[best]}"
        self.notify(f"generation {generation.number}: {count}, the fittest is {best} with {fitness}")
        values = {
            "step": individual.step,
            "generation": generation.number,
            "loss": generation.losses.get(best),
            "fitness": scores[best].fitness,
            "fitness_low": interval.low if interval else None,
            "fitness_high": interval.high if interval else None,
            "members": len(scores),
            "updates": generation.used.updates,
            "empty_updates": generation.used.empty,
            "tokens_computed": generation.used.tokens,
            "seconds": generation.used.seconds,
            **{name: value for name, value in individual.settings.items() if isinstance(value, int | float)},
        }
        MetricsFile(self.folder.metrics, individual.step - 1).append(values)
        self.trackers.log(values)

    def _finish(self, generation: Generation, scores: Scores) -> Evolved:
        winner = ranked(scores)[0]
        again = self.fitness.of_winner(generation, winner)
        report = winner_report(self.config, generation, scores, again)
        if isinstance(self.members, SpreadMembers):
            report["worker_losses"] = self.members.workers.losses
        draft = self.folder.final.with_name(f".{self.folder.final.name}")
        with drafting(draft, self.folder.final):
            self.trainees.save_adapter(winner, draft)
            self.template.tokenizer.save_pretrained(draft)  # so that every command takes the folder as a model
            put_in_place(draft, self.folder.final)
        ledgers = [ledger.to_json() for ledger in self.records.ledgers]
        write_json(self.folder.ledger, ledgers)
        write_json(self.folder.report, report)
        return Evolved(self.folder.path, self.folder.final, report, read_lineage(self.lineage), ledgers)


def winner_report(config: EvolveConfig, generation: Generation, scores: Scores, again: Score) -> dict[str, Any]:
    """The content of report.json: the winner's fitness as it was selected, and on what no member was selected on.

    The best of N members is partly the luckiest one, so the first number is too high on average. The difference
    between the two is the shrinkage.
    """
    name = ranked(scores)[0]
    selected, winner, used = scores[name], generation.individual(name), generation.used
    shrinkage = selected.fitness - again.fitness
    return {
        "step": winner.step,
        "winner": winner.described(),
        "metric": config.metric,
        "selected": selected.to_json(),
        "untouched": again.to_json(),
        "shrinkage": shrinkage if math.isfinite(shrinkage) else None,
        "members": len(scores),
        "generations": generation.number + 1,
        "updates": used.updates,
        "empty_updates": used.empty,
        "tokens_computed": used.tokens,
        "seconds": round(used.seconds, 3),
        "weights": "final",
    }


def _described(generation: Generation) -> list[dict[str, Any]]:
    return [individual.described() for individual in generation.individuals().values()]
