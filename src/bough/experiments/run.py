"""Runs a recipe: each stage once, skipped if nothing it depends on has changed, resumed if it was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue

from bough.commands import table
from bough.commands.table import Stage
from bough.config.groups import ClusterConfig, ReportConfig, key_values
from bough.errors import BoughError, InputError
from bough.evaluation.comparison import Comparison, compare
from bough.evaluation.intervals import holm
from bough.evaluation.results import Results
from bough.evaluation.success import report
from bough.experiments.recipe import (
    FILE_NAME,
    Planned,
    Recipe,
    find_recipe,
    judge,
    load_recipe,
    plan,
    read_recipe,
    to_yaml,
)
from bough.experiments.record import SharedStages, StageRecord, content, files_of, numbers_of
from bough.experiments.wiring import Artifacts, Stamp, Wiring, evaluates_the_run, hint, problems_of, stamped
from bough.files import is_draft, locked, refuse_links, remove, write_atomically, write_json
from bough.ledger import plural
from bough.rollouts.collect import free_gpu_memory
from bough.training.trackers import Name, RecipeTracker


class RunConfig(ReportConfig):
    """Runs the stages of a recipe. A stopped run resumes; stages whose inputs have not changed are skipped."""

    recipe: str = Field(
        description="a .yaml file, or the name of a shipped recipe (--dry-run shows its stages)",
        json_schema_extra={"positional": True},
    )
    output_dir: Path | None = Field(
        None,
        description="the run folder (default: runs/NAME, with the name of the recipe)",
        json_schema_extra={"short": "-o"},
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {},
        description="change it: model=…, seed=…, defaults.max_turns=…, or STAGE.SETTING=… (a command or a name)",
    )
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[Literal["mlflow", "wandb", "tensorboard", "none"]] | None = Field(
        None, description="trackers to use in addition to the run folder, or none (default: mlflow if it is installed)"
    )
    dry_run: bool = Field(False, description="check and print the settings of every stage; run nothing")


Notify = Callable[[str], None]
LOCK, LINEAGE = ".lock", "lineage.json"
# Files that a writing command keeps locked.
LOCKED_FILES = (LOCK, "trajectories.jsonl")


class Run:
    """A recipe in a folder. `shared` are stages that other runs have finished, if there are any."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        report_to: Sequence[Name] = (),
        shared: SharedStages | None = None,
        cluster: ClusterConfig | None = None,
    ) -> None:
        self.recipe, self.folder, self.report_to, self.shared = recipe, folder, list(report_to), shared
        self.wiring = Wiring(recipe, folder, self.report_to, cluster or ClusterConfig())
        self.stages = plan(recipe)
        self._connections = ExitStack()
        if problems := list(problems_of(recipe, self.stages, self.wiring)):  # before anything runs, all together
            count = plural(len(problems), "problem")
            raise InputError(f"the recipe {recipe.name} has {count}:", problems, hint=hint(recipe, problems))

    @classmethod
    def configured(cls, config: RunConfig) -> Self:
        """The run of the settings: their recipe with its changes, in their folder or runs/NAME."""
        recipe = load_recipe(find_recipe(config.recipe), config.set)
        names = config.report_to
        if names is None:
            names = ["mlflow"] if find_spec("mlflow") else []
        trackers = [name for name in names if name != "none"]
        folder = config.output_dir or Path("runs") / recipe.name
        return cls(recipe, folder, report_to=trackers, cluster=config.cluster)

    def settings(self) -> Iterator[tuple[Planned, dict[str, Any]]]:
        """Every stage with the settings it would run with, without those at their defaults."""
        artifacts = Artifacts(self.recipe.model)
        for stage in self.stages:
            yield stage, self.wiring.config(stage, artifacts).flat_dump(exclude_unset=True)
            self.wiring.add(stage, artifacts)

    def play(self, notify: Notify) -> None:
        """Runs the stages that have to be run."""
        self._check_folder()  # before the lock file is created in a folder that is not a run's
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be used as a run folder: {error.strerror}") from None
        try:
            with locked(self.folder / LOCK, wait=False):
                self._check_folder()
                self._play_all(notify)
        except BlockingIOError:
            raise InputError(f"{self.folder} is in use by another `bough run`; give another --output-dir") from None

    def _play_all(self, notify: Notify) -> None:
        recipe, lineage = self.folder / FILE_NAME, self.folder / LINEAGE
        write_atomically(recipe, to_yaml(self.recipe))
        artifacts, about = Artifacts(self.recipe.model), self.recipe.model_dump(mode="json")
        tracking = "mlflow" in self.report_to
        with (
            RecipeTracker(self.folder, self.recipe.name, about) if tracking else nullcontext() as tracker,
            self._connections,
        ):
            if tracker:
                tracker.keep(recipe)
            else:  # a stage would open a database of its own where the run's could not be opened
                others = [name for name in self.report_to if name != "mlflow"]
                self.wiring = replace(self.wiring, report_to=others)
            for stage in self.stages:
                record = self._play(stage, artifacts, notify, tracker)
                self._apply_gate(stage, artifacts, record, notify)
                self.wiring.add(stage, artifacts)
                write_json(lineage, self.lineage())
            if tracker:
                tracker.keep(lineage)

    def lineage(self) -> list[dict[str, Any]]:
        """The inputs and outputs of every stage so far."""
        records = [(stage, StageRecord.read(self.folder / stage.folder)) for stage in self.stages]
        return [
            {"stage": stage.folder, "verb": record.verb, "inputs": record.inputs, "outputs": record.outputs,
             "finished": record.finished, "note": record.note, "goes_on_with": record.goes_on_with}
            for stage, record in records if record is not None
        ]  # fmt: skip

    def _play(self, stage: Planned, artifacts: Artifacts, notify: Notify, tracker: RecipeTracker | None) -> StageRecord:
        kind, folder = table.stages()[stage.verb], self.folder / stage.folder
        refuse_links(folder)
        stamp = stamped(stage.verb, self.wiring.config(stage, artifacts))
        record = _finished(folder, kind, stamp)
        known = record is not None and tracker is not None and tracker.knows(stage.folder)
        if record is not None:
            notify(f"{stage.folder}: already done")
            if self.shared:
                self.shared.add(stamp.fingerprint, folder)
        else:
            with self.shared.claimed(stamp.fingerprint) if self.shared else nullcontext():
                record = self._taken(stage, stamp, notify) or self._work(stage, artifacts, stamp, notify)
        # Training reports for itself. An earlier process may have been killed before it reported the stage.
        if tracker and kind.writes != "model" and not known:
            tracker.add(stage.folder, stamp.settings, numbers_of(folder), files_of(folder))
        return record

    def _taken(self, stage: Planned, stamp: Stamp, notify: Notify) -> StageRecord | None:
        """The stage as another run has finished it, now in this run's folder; None if there is none."""
        folder = self.folder / stage.folder
        source = self.shared.find(stamp.fingerprint, table.stages()[stage.verb].artefact) if self.shared else None
        if source is None or self.shared is None:
            return None
        _clear(folder)
        self.shared.copy(source, folder, name=stage.name, round=stage.round)
        notify(f"{stage.folder}: the same as {source.parent.name}/{source.name}")
        return _finished(folder, table.stages()[stage.verb], stamp)

    def _work(self, stage: Planned, artifacts: Artifacts, stamp: Stamp, notify: Notify) -> StageRecord:
        """Runs the stage's command, from the start or from where it was interrupted."""
        kind, folder = table.stages()[stage.verb], self.folder / stage.folder
        before = StageRecord.read(folder)
        if before is None or before.fingerprint != stamp.fingerprint:
            _clear(folder)
            if before is not None:
                notify(f"{stage.folder}: its settings or inputs have changed; starting over")
        record = StageRecord(stage.verb, stage.name, stage.round, stamp.fingerprint, stamp.inputs)
        folder.mkdir(parents=True, exist_ok=True)
        record.write(folder)
        notify(f"{stage.folder}")
        started = time.monotonic()
        config = self.wiring.config(stage, artifacts)
        cluster = getattr(config, "cluster", None)
        if cluster is not None and cluster.address is not None:
            from bough.rollouts.ray import connected

            # Until the run ends: a Ray that is started here takes seconds each time.
            self._connections.enter_context(connected(cluster))
        code = int(table.command(stage.verb).run(config) or 0)
        if code or not (folder / kind.artefact).exists():
            raise BoughError(f"{stage.folder} failed; finished stages are kept, and `bough run` resumes here")
        free_gpu_memory()  # the next stage loads its own models, and other runs may share the GPU
        record.seconds = time.monotonic() - started
        record.outputs = {kind.writes: content(folder / kind.artefact)}
        record.finished = True
        record.write(folder)
        if self.shared:
            self.shared.add(stamp.fingerprint, folder)
        return record

    def _apply_gate(self, stage: Planned, artifacts: Artifacts, record: StageRecord, notify: Notify) -> None:
        """After an evaluation with a gate: a model that is not significantly better is replaced by the one before."""
        kind = table.stages()[stage.verb]
        if kind.writes != "evaluation":
            return
        if evaluates_the_run(stage):
            here = (self.folder / stage.folder / kind.artefact, artifacts.model)
            if stage.gate is None or artifacts.accepted is None:
                artifacts.accepted = here
            else:
                against = stage.gate.against
                before = artifacts.evaluated[against] if against is not None else artifacts.accepted
                verdict = judge(before[0], here[0], stage.gate)
                artifacts.accepted = here if verdict.promote else before
                artifacts.model = artifacts.accepted[1]
                record.note = verdict.reason
                notify(f"{stage.folder}: {verdict.reason}")
            artifacts.evaluated[stage.name] = here
        path = Path(artifacts.model)
        inside = path.is_relative_to(self.folder)
        record.goes_on_with = str(path.relative_to(self.folder)) if inside else artifacts.model
        record.write(self.folder / stage.folder)

    def _check_folder(self) -> None:
        """A folder contains one recipe's run. Its settings may change; only the stages they concern run again."""
        if not self.folder.is_dir():
            return
        if (self.folder / FILE_NAME).exists():
            if (before := read_recipe(self.folder).name) != self.recipe.name:
                raise InputError(f"{self.folder} contains a run of the recipe {before}; give another --output-dir")
        elif any(path.name != LOCK and not is_draft(path, FILE_NAME) for path in self.folder.iterdir()):
            raise InputError(f"{self.folder} contains other files; a run needs a folder of its own")


def _finished(folder: Path, kind: Stage, stamp: Stamp) -> StageRecord | None:
    """The record of a stage that has finished with the same settings and inputs."""
    record = StageRecord.read(folder)
    same = record is not None and record.finished and record.fingerprint == stamp.fingerprint
    return record if same and (folder / kind.artefact).exists() else None


def _clear(folder: Path) -> None:
    """Removes a stage's folder, if no command is writing into it: their locks are held until it is gone."""
    with ExitStack() as held:
        try:
            for name in LOCKED_FILES:
                for file in folder.rglob(name) if folder.is_dir() and not folder.is_symlink() else ():
                    held.enter_context(locked(file, wait=False))
            remove(folder)
        except BlockingIOError:
            raise InputError(
                f"{folder} is in use: another process is writing there; wait for it, or give another --output-dir"
            ) from None
        except OSError as error:
            raise BoughError(f"{folder}: cannot be removed: {error.strerror}: {error.filename}") from None


# The evaluations of a run in order: success with its interval, and the difference from the model before.


@dataclass(frozen=True)
class SummaryRow:
    """An evaluation of a run. `compared` is the comparison with the model that the run had continued with, if any."""

    stage: str
    success: float | None
    low: float
    high: float
    episodes: int
    lost: int = 0
    before: str = ""
    compared: Comparison | None = None


def summary(folder: Path, recipe: Recipe) -> list[SummaryRow]:
    """All finished evaluations in order; p-values are corrected for the number of comparisons (Holm)."""
    rows: list[SummaryRow] = []
    seen: list[tuple[str, Results]] = []
    held: list[tuple[str, Results]] = []  # those of the model in use last
    for stage in plan(recipe):
        record = StageRecord.read(folder / stage.folder)
        if record is None or not record.finished or stage.verb != "eval":
            continue
        try:
            results = Results.read(folder / stage.folder)
        except InputError:  # `bough eval --eval-file` writes another kind of file
            continue
        rows.append(_row(stage.folder, results, held))
        seen.append((stage.folder, results))
        # The names of models outside the working directory end in a digest.
        names = [one.models[-1].name.partition("@")[0] for _, one in seen]
        onward = record.goes_on_with
        of_it = [one for one, name in zip(seen, names, strict=True) if name.endswith(onward)] if onward else seen[-1:]
        held = [one for one in held if one not in of_it] + of_it or seen[:1]
    corrected = iter(holm([row.compared.success.p for row in rows if row.compared]))
    return [
        replace(row, compared=replace(row.compared, adjusted_p=next(corrected))) if row.compared else row
        for row in rows
    ]


def _row(stage: str, results: Results, held: Sequence[tuple[str, Results]]) -> SummaryRow:
    """An evaluation, compared with the newest one of `held` on the same tasks: a run may have several sets of them."""
    model, early = results.models[-1], results.stop_width is not None
    found = report(model.outcomes, lost=model.lost, level=0.95, sequential=early).success
    row = SummaryRow(stage, None, 0.0, 1.0, len(model.outcomes), len(model.lost), held[-1][0] if held else "")
    if found is not None and found.interval is not None:
        row = replace(row, success=found.mean, low=found.interval.low, high=found.interval.high)
    for before, old in reversed(held):
        with suppress(InputError):  # different tasks cannot be compared
            [compared, *_] = compare([old.models[-1], model], sequential=early or old.stop_width is not None)
            return replace(row, before=before, compared=compared)
    return row
