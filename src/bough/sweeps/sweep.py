"""A sweep in its folder: checked as a whole, run here, in processes or on a cluster, resumed, and reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Self

from bough.config.cluster import ClusterConfig
from bough.config.sweep import SweepConfig
from bough.disk import is_draft, locked, read_json, refuse_links, write_atomically, write_json
from bough.errors import BoughError, InputError, exception_line
from bough.evaluation.results import Results
from bough.evaluation.seeds import across_seeds, rate_of
from bough.plural import plural
from bough.runs.recipe import find_recipe
from bough.runs.record import StageRecord
from bough.runs.run import LOCK, Run
from bough.runs.shared_stages import SharedStages
from bough.runs.wiring import evaluates_the_run
from bough.sweeps.figure import draw
from bough.sweeps.processes import in_processes
from bough.sweeps.sharing import StampedStage, stamps
from bough.sweeps.spread import on_cluster
from bough.sweeps.table import LEVEL, SweepRow, as_csv, markdown
from bough.sweeps.variations import Variation, label, variations
from bough.tracking.trackers import Name

Notify = Callable[[str], None]
FILE_NAME, RUNS, LOGS = "sweep.json", "runs", "logs"


class Sweep:
    """All runs of a sweep. Making one checks every setting of every run; nothing runs before `play`."""

    def __init__(
        self,
        found: list[Variation],
        folder: Path,
        *,
        jobs: int = 1,
        report_to: list[Name] | None = None,
        cluster: ClusterConfig | None = None,
    ) -> None:
        self.variations, self.folder, self.jobs, self.report_to = found, folder, jobs, report_to or []
        self.cluster = cluster if cluster is not None and cluster.address is not None else None
        self.settings = list(found[0].values)
        self.shared = SharedStages(folder)
        self.runs = self._checked()
        self.stamps: list[list[StampedStage]] = stamps(self.runs)
        self._check_effects()
        self.failed: dict[str, str] = {}

    @classmethod
    def configured(cls, config: SweepConfig) -> Self:
        """The sweep of the settings, in their folder or runs/NAME-sweep."""
        found = variations(find_recipe(config.recipe), config.vary, config.seeds, config.set)
        folder = config.output or Path("runs") / f"{found[0].recipe.name}-sweep"
        trackers = [name for name in config.report_to if name != "none"]
        return cls(found, folder, jobs=config.jobs, report_to=trackers, cluster=config.cluster)

    def _checked(self) -> list[Run]:
        """Every run with its settings checked; problems of all of them are reported once."""
        runs, problems, hint = [], dict[str, None](), ""
        for one in self.variations:
            folder = self.folder / RUNS / one.name
            try:
                runs.append(Run(one.recipe, folder, report_to=self.report_to, shared=self.shared))
            except InputError as error:
                problems |= dict.fromkeys(error.problems or [str(error)])
                hint = str(error).rpartition("\n")[2] if "--set defaults.environment" in str(error) else ""
        if problems:
            count = plural(len(problems), "problem")
            raise InputError(f"the sweep has {count}:", problems, hint=hint)
        return runs

    def _check_effects(self) -> None:
        """Every combination must be a different run whose difference is evaluated."""
        name = self.variations[0].recipe.name
        measured = [self._measured(run) for run in self.stamps]
        if not measured[0]:
            raise InputError(
                f"the recipe {name} does not evaluate its model in an environment, so there is nothing to report; "
                "add a stage such as `- eval: {tasks: 100}`"
            )
        problems = list(self._early_stops())
        first: dict[tuple[str, ...], Variation] = {}
        for one, evaluations in zip(self.variations, measured, strict=True):
            if one.seed:
                continue
            same = first.setdefault(tuple(stage.stamp for stage in evaluations), one)
            if same is not one:
                changed = {key: value for key, value in one.values.items() if same.values[key] != value}
                problems.append(
                    f"no evaluation depends on {label(changed)}: it gives the same numbers as {label(same.values)}"
                )
        if problems:
            raise InputError("the sweep cannot show anything:", problems)

    def _early_stops(self) -> dict[str, None]:
        """Evaluations that would end when their own results say so: their rates cannot be averaged over seeds."""
        return {
            f"{stage.place}: stop_width ends evaluations at different sizes, whose seeds cannot be averaged; "
            f"remove it, or --set {stage.name}.stop_width=null": None
            for run in self.runs
            for stage, given in run.settings()
            if stage.verb == "eval" and given.get("stop_width") is not None
        }

    def _measured(self, stages: list[StampedStage]) -> list[StampedStage]:
        return [one for one in stages if evaluates_the_run(one.stage)]

    def plan(self) -> Iterator[tuple[Variation, list[tuple[StampedStage, Variation | None]]]]:
        """Every run with its stages; a stage that an earlier run computes comes with that run."""
        first: dict[str, Variation] = {}
        for one, stages in zip(self.variations, self.stamps, strict=True):
            shown = []
            for stage in stages:
                source = first.setdefault(stage.stamp, one)
                shown.append((stage, None if source is one else source))
            yield one, shown

    def play(self, notify: Notify) -> list[SweepRow]:
        """Runs what has not run yet and writes the results. `failed` then names the runs that failed."""
        self._check_folder()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be used as the folder of a sweep: {error.strerror}") from None
        try:
            with locked(self.folder / LOCK, wait=False):
                self._check_folder()
                refuse_links(self.folder / LOGS, self.shared.index, *(run.folder for run in self.runs))
                write_json(self.folder / FILE_NAME, self._about())
                self.failed = self._play_all(notify)
                return self._report()
        except BlockingIOError:
            raise InputError(f"{self.folder} is in use by another `bough sweep`; give another --output") from None

    def _play_all(self, notify: Notify) -> dict[str, str]:
        names = {run.folder.name: one for run, one in zip(self.runs, self.variations, strict=True)}
        done = 0

        def started(run: Run, number: int) -> None:
            notify(f"run {number} of {len(self.runs)}: {names[run.folder.name].label}")

        def ended(run: Run, failure: str | None) -> None:
            nonlocal done
            done += 1
            state = "finished" if failure is None else f"failed: {failure.splitlines()[0]}"
            notify(f"{names[run.folder.name].label}: {state}; {done} of {plural(len(self.runs), 'run')} done")

        if self.cluster is not None:
            return on_cluster(self.runs, self.cluster, self.folder, self.folder / LOGS, started, ended, notify)
        if self.jobs > 1:
            return in_processes(self.runs, self.jobs, self.folder / LOGS, started, ended)
        failed = {}
        for number, run in enumerate(self.runs, 1):
            started(run, number)
            failure = _play_here(run, notify)
            ended(run, failure)
            if failure is not None:
                failed[run.folder.name] = failure
        return failed

    def rows(self) -> list[SweepRow]:
        """Every evaluation of every combination, from the runs that have finished it."""
        seeds = len({one.seed for one in self.variations})
        combinations = [slice(start, start + seeds) for start in range(0, len(self.runs), seeds)]
        found = []
        for at, evaluation in enumerate(self._measured(self.stamps[0])):
            others = [self._measured(run)[at].stamp for run in self.stamps[seeds::seeds]]
            same = bool(others) and all(stamp == evaluation.stamp for stamp in others)
            for chosen in combinations[:1] if same else combinations:
                values = {} if same else self.variations[chosen.start].values
                found.append(self._row(values, evaluation.stage.folder, range(len(self.runs))[chosen]))
        return found

    def _row(self, values: dict[str, Any], evaluation: str, chosen: range) -> SweepRow:
        finished = {}
        for number in chosen:
            folder = self.runs[number].folder / evaluation
            if self._has(self.runs[number], evaluation):
                finished[self.variations[number].seed] = Results.read(folder).models[-1]
        rates = {seed: rate_of(model) for seed, model in finished.items()}
        success = across_seeds(list(finished.values()), LEVEL)
        lost = sum(len(model.lost) for model in finished.values())
        return SweepRow(values, evaluation, len(chosen), rates, success, lost)

    def _has(self, run: Run, evaluation: str) -> bool:
        """Whether the run has finished the evaluation. One that failed may have it from earlier settings."""
        if run.folder.name in self.failed:
            return evaluation in run.up_to_date()
        record = StageRecord.read(run.folder / evaluation)
        return record is not None and record.finished

    def _report(self) -> list[SweepRow]:
        rows = self.rows()
        content = {"rows": [row.to_json() for row in rows], "failed": self.failed}
        write_json(self.folder / "results.json", self._about() | content)
        write_atomically(self.folder / "results.md", markdown(rows, self.settings, self.failed))
        write_atomically(self.folder / "results.csv", as_csv(rows, self.settings))
        last = [row for row in rows if row.values][-1].evaluation
        write_atomically(self.folder / "figure.svg", draw([row for row in rows if row.evaluation == last]))
        return rows

    def _about(self) -> dict[str, Any]:
        values = [one.values for one in self.variations if one.seed == 0]
        return {
            "recipe": self.variations[0].recipe.name,
            "settings": self.settings,
            "combinations": values,
            "seeds": len(self.variations) // len(values),
        }

    def _check_folder(self) -> None:
        """A folder contains the sweeps of one recipe. Values and seeds may be added; finished stages are reused."""
        if not self.folder.is_dir():
            return
        name = self.variations[0].recipe.name
        try:
            before = read_json(self.folder / FILE_NAME)
        except FileNotFoundError:
            if any(path.name != LOCK and not is_draft(path, FILE_NAME) for path in self.folder.iterdir()):
                raise InputError(f"{self.folder} contains other files; a sweep needs a folder of its own") from None
            return
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / FILE_NAME}: cannot be read: {error}") from None
        if not isinstance(before, dict) or before.get("recipe") != name:
            raise InputError(f"{self.folder} contains a sweep of another recipe than {name}; give another --output")


def _play_here(run: Run, notify: Notify) -> str | None:
    """Plays a run in this process; returns why it failed."""
    try:
        with redirect_stdout(sys.stderr):  # what the stages print is progress here
            run.play(lambda line: notify(f"  {line}"))
    except BoughError as error:
        return str(error) or exception_line(error)
    except Exception as error:  # one failed run does not stop the others
        return exception_line(error)
    return None
