"""Playing a recipe: each stage once, skipped if nothing it depends on has changed, resumed if it was cut short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough.config.base import Config
from bough.disk import locked, remove, write_atomically, write_json
from bough.errors import BoughError, InputError, did_you_mean
from bough.rundir import RunDir
from bough.runs.gate import judge
from bough.runs.kinds import FREE, KINDS, Kind
from bough.runs.numbers import files_of, numbers_of
from bough.runs.recipe import FILE_NAME, Planned, Recipe, plan, read_recipe, to_yaml
from bough.runs.record import StageRecord, content, fingerprint
from bough.tracking.recipe import RecipeTracker
from bough.tracking.trackers import Name
from bough.verbs import VERBS, resolve

Tell = Callable[[str], None]
LOCK = ".lock"


@dataclass
class Artifacts:
    """What the stages so far have made: the newest of each kind, and everything by its stage's name."""

    model: str
    newest: dict[str, Path] = field(default_factory=dict)
    by_name: dict[str, Path] = field(default_factory=dict)
    # Evaluations with the model they were made with, for gates; `accepted` is that of the model that goes on.
    evaluated: dict[str, tuple[Path, str]] = field(default_factory=dict)
    accepted: tuple[Path, str] | None = None


class Run:
    """A recipe in a folder."""

    def __init__(self, recipe: Recipe, folder: Path, *, report_to: Sequence[Name] = ()) -> None:
        self.recipe, self.folder, self.report_to = recipe, folder, list(report_to)
        self.stages = plan(recipe)
        self.check()

    def check(self) -> None:
        """Every stage's settings, before anything runs: all problems at once."""
        problems = list(self._world_problems())
        shelf = Artifacts(self.recipe.model)
        for stage in self.stages:
            if stage.verb not in KINDS:
                problems.append(
                    f"{stage.place}: {stage.verb} is no stage{did_you_mean(stage.verb, [*KINDS, 'repeat'])}"
                )
                continue
            try:
                self._config(stage, shelf)
            except InputError as error:
                problems += [f"{stage.place}: {problem}" for problem in error.problems or [str(error)]]
            problems += self._gate_problems(stage)
            problems += _output_problems(stage)
            self._shelve(stage, shelf)
        if problems:
            raise InputError(f"the recipe {self.recipe.name} has {len(problems)} problems:", problems)

    def _world_problems(self) -> Iterator[str]:
        """Settings of the world that no verb has."""
        configs: list[type[Config]] = [resolve(VERBS[verb].config) for verb in KINDS]
        known = {name for config in configs for name in config.model_fields}
        for key in self.recipe.world:
            if not any(config.field_name(key) in known for config in configs):
                yield f"world.{key}: no stage has such a setting{did_you_mean(key, sorted(known))}"

    def _gate_problems(self, stage: Planned) -> Iterator[str]:
        if stage.gate is None:
            return
        if not _judges_the_run(stage):
            yield f"{stage.place}.gate: only an evaluation of the run's own model, in the world, has a gate"
        against = stage.gate.against
        evaluations = [one.name for one in self.stages[: stage.number - 1] if _judges_the_run(one)]
        if against is not None and against not in evaluations:
            yield f"{stage.place}.gate: there is no earlier evaluation {against!r}{did_you_mean(against, evaluations)}"

    def settings(self) -> Iterator[tuple[Planned, dict[str, Any]]]:
        """Every stage with the settings it would run with, those at their defaults left out."""
        shelf = Artifacts(self.recipe.model)
        for stage in self.stages:
            yield stage, self._config(stage, shelf).model_dump(mode="json", exclude_unset=True)
            self._shelve(stage, shelf)

    def play(self, tell: Tell) -> None:
        """Runs what has to be run."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be used as a run folder: {error.strerror}") from None
        self._agree()
        try:
            with locked(self.folder / LOCK, wait=False):
                self._play_all(tell)
        except BlockingIOError:
            raise InputError(f"{self.folder}: another process is at this run; take another --output-dir") from None

    def _play_all(self, tell: Tell) -> None:
        recipe, lineage = self.folder / FILE_NAME, self.folder / "lineage.json"
        write_atomically(recipe, to_yaml(self.recipe))
        shelf = Artifacts(self.recipe.model)
        with self._tracker() as tracker:
            if tracker:
                tracker.keep(recipe)
            for stage in self.stages:
                record = self._play(stage, shelf, tell, tracker)
                self._open_gate(stage, shelf, record, tell)
                self._shelve(stage, shelf)
                write_json(lineage, self.lineage())
            if tracker:
                tracker.keep(lineage)

    def _tracker(self) -> AbstractContextManager[RecipeTracker | None]:
        if "mlflow" not in self.report_to:
            return nullcontext()
        return RecipeTracker(self.folder, self.recipe.name, self.recipe.model_dump(mode="json"))

    def lineage(self) -> list[dict[str, Any]]:
        """Which data and which model made which, as far as the run has come."""
        records = [(stage, StageRecord.read(self.folder / stage.folder)) for stage in self.stages]
        return [
            {"stage": stage.folder, "verb": record.verb, "inputs": record.inputs, "outputs": record.outputs,
             "finished": record.finished, "note": record.note, "goes_on_with": record.goes_on_with}
            for stage, record in records if record is not None
        ]  # fmt: skip

    def _play(self, stage: Planned, shelf: Artifacts, tell: Tell, tracker: RecipeTracker | None) -> StageRecord:
        kind, folder = KINDS[stage.verb], self.folder / stage.folder
        if folder.is_symlink():
            raise InputError(f"{folder} is a link; a run writes and removes only inside its own folder")
        config = self._config(stage, shelf)
        inputs = _inputs(KINDS[stage.verb], config)
        settings = {key: value for key, value in config.model_dump(mode="json").items() if key not in FREE}
        for name in inputs:  # where an input lies is no matter, only what is in it
            settings.pop(name, None)
        record = StageRecord(stage.verb, stage.name, stage.round, fingerprint(stage.verb, settings, inputs), inputs)
        before = StageRecord.read(folder)
        same = before is not None and before.fingerprint == record.fingerprint
        if before is not None and same and before.finished and (folder / kind.artefact).exists():
            tell(f"{stage.folder}: done already")
            if tracker and kind.writes != "model" and not tracker.knows(stage.folder):  # killed in between
                tracker.add(stage.folder, settings, numbers_of(folder), files_of(folder))
            return before
        if not same:
            if before is not None:
                tell(f"{stage.folder}: what it depends on has changed; starting it anew")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        record.write(folder)
        tell(f"{stage.folder}")
        begun = time.monotonic()
        code = int(resolve(VERBS[stage.verb].run)(self._config(stage, shelf)) or 0)
        if code or not (folder / kind.artefact).exists():
            raise BoughError(f"{stage.folder} did not succeed; what is finished stays, `bough run` goes on from here")
        record.seconds = time.monotonic() - begun
        record.outputs = {kind.writes: content(folder / kind.artefact)}
        record.finished = True
        record.write(folder)
        if tracker and kind.writes != "model":  # who trains reports for itself
            tracker.add(stage.folder, settings, numbers_of(folder), files_of(folder))
        return record

    def _config(self, stage: Planned, shelf: Artifacts) -> Config:
        """The stage's settings: its own, then the world's and what the stages before have made."""
        kind, folder = KINDS[stage.verb], self.folder / stage.folder
        config: type[Config] = resolve(VERBS[stage.verb].config)
        fields = config.model_fields
        own = {config.field_name(key): value for key, value in stage.settings.items()}
        if kind.writes == "evaluation" and "eval_file" in own:  # likelihoods of a file: no world has a part in it
            return config(**{"model": shelf.model, kind.output: folder / kind.artefact} | own)
        values: dict[str, Any] = {config.field_name(key): value for key, value in self.recipe.world.items()}
        # Every round plays other tasks, but is judged on the same.
        later = 0 if kind.writes == "evaluation" else stage.round - 1
        values |= {"model": shelf.model, "seed": self.recipe.seed + later}
        values |= {kind.output: folder / kind.artefact if kind.one_file else folder}
        if kind.resumes:
            values["resume"] = RunDir(folder).used  # from its newest checkpoint, or anew where there is none yet
        values |= {"report_to": self.report_to}
        values = {key: value for key, value in values.items() if key in fields} | own
        if kind.reads and kind.file not in own:
            sources = self._sources(stage, kind, shelf)
            if sources[1:]:
                values["also"] = sources[1:]
            if sources and not (kind.or_plays and "environment" in own):
                values[kind.file] = sources[0]
                for name in ("environment", "options") if kind.or_plays else ():
                    values.pop(name, None)
        return config(**values)

    def _sources(self, stage: Planned, kind: Kind, shelf: Artifacts) -> list[Path]:
        """The files that the stage reads: those of the stages it names, or the newest of its kind."""
        assert kind.reads is not None
        for name in stage.sources:
            if name not in shelf.by_name:
                raise InputError(f"from: there is no earlier stage {name!r}{did_you_mean(name, shelf.by_name)}")
        if stage.sources:
            return [shelf.by_name[name] for name in stage.sources]
        return [shelf.newest[kind.reads]] if kind.reads in shelf.newest else []

    def _shelve(self, stage: Planned, shelf: Artifacts) -> None:
        kind = KINDS[stage.verb]
        path = self.folder / stage.folder / kind.artefact
        shelf.by_name[stage.name] = shelf.newest[kind.writes] = path
        if kind.writes == "model":
            shelf.model = str(path)

    def _open_gate(self, stage: Planned, shelf: Artifacts, record: StageRecord, tell: Tell) -> None:
        """After an evaluation with a gate: a model that is not really better gives way to the one before."""
        if KINDS[stage.verb].writes != "evaluation":
            return
        if not _judges_the_run(stage):
            self._remember(stage, shelf, record)
            return
        here = (self.folder / stage.folder / KINDS[stage.verb].artefact, shelf.model)
        if stage.gate is None or shelf.accepted is None:
            shelf.accepted = here
        else:
            against = stage.gate.against
            old, model_before = shelf.evaluated[against] if against is not None else shelf.accepted
            verdict = judge(old, here[0], alpha=stage.gate.alpha)
            shelf.accepted = here if verdict.promote else (old, model_before)
            shelf.model = shelf.accepted[1]
            record.note = verdict.reason
            tell(f"{stage.folder}: {verdict.reason}")
        shelf.evaluated[stage.name] = here
        self._remember(stage, shelf, record)

    def _remember(self, stage: Planned, shelf: Artifacts, record: StageRecord) -> None:
        """Which model the run goes on with after an evaluation."""
        path = Path(shelf.model)
        record.goes_on_with = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else shelf.model
        record.write(self.folder / stage.folder)

    def _agree(self) -> None:
        """A folder holds one recipe's run; settings may change, and only what they concern is run again."""
        if (self.folder / FILE_NAME).exists():
            before = read_recipe(self.folder).name
            if before != self.recipe.name:
                raise InputError(f"{self.folder} holds a run of the recipe {before}; take another --output-dir")
        elif any(path.name != LOCK for path in self.folder.iterdir()):
            raise InputError(f"{self.folder} holds other files; a run needs a folder of its own")


def _output_problems(stage: Planned) -> Iterator[str]:
    """A stage writes into its own folder: another could be overwritten, and is not the run's."""
    config: type[Config] = resolve(VERBS[stage.verb].config)
    if KINDS[stage.verb].output in map(config.field_name, stage.settings):
        yield f"{stage.place}: {KINDS[stage.verb].output} is the stage's own folder in the run; leave it out"


def _clear(folder: Path) -> None:
    try:
        remove(folder)
    except OSError as error:
        raise BoughError(f"{folder}: cannot be removed: {error.strerror}: {error.filename}") from None


def _judges_the_run(stage: Planned) -> bool:
    """Whether the stage plays the run's own model: one that names another, or a file, is there to be looked at."""
    config: type[Config] = resolve(VERBS[stage.verb].config) if stage.verb in KINDS else Config
    own = {config.field_name(key) for key in stage.settings}
    return stage.verb in KINDS and KINDS[stage.verb].writes == "evaluation" and not own & {"model", "eval_file"}


def _inputs(kind: Kind, config: Config) -> dict[str, str]:
    """Every input by its setting, as a digest of its content."""
    values = config.model_dump()
    inputs = {}
    for name in filter(None, ("model", "adapter", "task_file", "eval_file", kind.file, "also")):
        value = values.get(name)
        if isinstance(value, list) and value:
            inputs[name] = ",".join(content(Path(str(one))) for one in value)
        elif value:
            inputs[name] = content(Path(str(value)))
    return inputs
