"""The loop over generations: train, measure, select, breed; then the winner is measured once more.

OUTPUT/config.yaml        the settings
OUTPUT/lineage.jsonl      every member of every generation
OUTPUT/metrics.jsonl      one line per generation, about its fittest member
OUTPUT/checkpoints/       the newest generation, to resume from
OUTPUT/final/             the winner's adapter
OUTPUT/report.json        the winner: as selected, and on what no member was selected on
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bough.disk import drafting, put_in_place, write_atomically, write_json
from bough.evolution.advice import in_own_words
from bough.evolution.breeding import breed, founders, select
from bough.evolution.generation import Generation, writing
from bough.evolution.lineage import FILE_NAME, add_generation, generation_lines, read_lineage
from bough.evolution.records import TrainingData
from bough.evolution.selection import Scores, ranked
from bough.evolution.settings import EvolveConfig
from bough.evolution.setup import Setup, open_setup
from bough.evolution.watch import Unwatched, Watcher
from bough.evolution.winner import winner_report
from bough.methods.base import Data
from bough.plural import plural
from bough.tracking.population import PopulationTrackers
from bough.training.metrics_file import MetricsFile

Notify = Callable[[str], None]


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
    data: TrainingData | None = None,
    held_out: Data | None = None,
    test: Data | None = None,
    *,
    notify: Notify = lambda _: None,
    watch: Watcher | None = None,
) -> Evolved:
    """Evolves a population on the settings' files, or on the records given here. `watch` is told how it proceeds."""
    with (
        in_own_words(config),
        open_setup(config, data, held_out, test, notify=notify) as setup,
        _trackers(setup) as trackers,
    ):
        return Evolution(setup, notify, watch or Unwatched(), trackers).run()


def _trackers(setup: Setup) -> PopulationTrackers:
    tracking, folder = setup.config.tracking, setup.folder
    settings = folder.recorded(setup.config.flat_dump())
    return PopulationTrackers(tracking.report_to, folder.path, tracking.wandb_project, settings)


class Evolution:
    """A run. All that it must remember between generations is in their folders."""

    def __init__(self, setup: Setup, notify: Notify, watch: Watcher, trackers: PopulationTrackers) -> None:
        self.watch, self.trackers = watch, trackers
        self.setup, self.config, self.folder, self.notify = setup, setup.config, setup.folder, notify
        self.trainees, self.fitness = setup.trainees, setup.fitness
        self.lineage = self.folder.path / FILE_NAME
        if setup.players is not None:
            setup.players.report = watch.played

    def run(self) -> Evolved:
        generation = Generation.newest(self.folder.checkpoints) if self.config.resume else None
        if generation is None:
            write_atomically(self.lineage, "")  # not that of a run that was overwritten; a viewer waits for its lines
            generation = self._founded()
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
            self.trackers.log_members(lines)
            self.watch.measured(lines)
            if places is None:
                return self._finish(generation, scores)
            generation = breed(self.config, generation, scores, places)
            self.trainees.load(generation)

    def _founded(self) -> Generation:
        folder = self.folder.checkpoints
        with writing(folder, 0, trained=False, used=self.setup.used) as draft:
            self.trainees.found(founders(self.config, self.setup.rank), self.setup.start, draft)
        return Generation.read(folder / "generation-00000")

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
        if self.setup.actors is not None:
            report["worker_losses"] = self.setup.actors.losses
        draft = self.folder.final.with_name(f".{self.folder.final.name}")
        with drafting(draft, self.folder.final):
            self.setup.save(winner, draft)
            put_in_place(draft, self.folder.final)
        ledgers = [ledger.to_json() for ledger in self.setup.records.ledgers]
        write_json(self.folder.ledger, ledgers)
        write_json(self.folder.report, report)
        return Evolved(self.folder.path, self.folder.final, report, read_lineage(self.lineage), ledgers)


def _described(generation: Generation) -> list[dict[str, Any]]:
    return [individual.described() for individual in generation.individuals().values()]
