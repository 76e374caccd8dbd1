"""A sweep in its folder: checked as a whole, run here, in processes or on a cluster, resumed, and reported."""

from __future__ import annotations

import copy
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, JsonValue, model_validator

from bough.config.base import setting
from bough.config.groups import ClusterConfig, ReportConfig, key_values
from bough.config.yaml_file import read_value, write_value
from bough.errors import BoughError, InputError, exception_line
from bough.evaluation.results import Results
from bough.evaluation.success import across_seeds, rate_of
from bough.experiments.recipe import Planned, Recipe, all_stages, find_recipe, load_recipe
from bough.experiments.record import SharedStages, StageRecord, content
from bough.experiments.run import LOCK, Run
from bough.experiments.sweep_processes import in_processes, on_cluster
from bough.experiments.sweep_table import LEVEL, SweepRow, as_csv, draw, label, markdown, same
from bough.experiments.wiring import Artifacts, evaluates_the_run, stamped
from bough.files import is_draft, locked, read_json, refuse_links, text_digest, write_atomically, write_json
from bough.ledger import plural
from bough.training.trackers import Name

# YAML reads 1e-5, which has no point, as text.
EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


def _values(given: Any) -> Any:
    """`SETTING=VALUE,VALUE` arguments of the command line, as lists by setting; values are read as YAML."""
    if not isinstance(given, list):
        return given
    found: dict[str, Any] = {}
    for word in given:
        key, equals, text = str(word).partition("=")
        try:
            values = read_value(f"[{text}]") if equals and text.strip() else None
        except yaml.YAMLError:
            values = None
        if values is None:
            raise ValueError(f"{word!r} must be written as SETTING=VALUE,VALUE, such as dpo.beta=0.01,0.1,0.5")
        if key in found:
            raise ValueError(f"{key} is given twice; list all its values after one {key}=")
        found[key] = [float(one) if isinstance(one, str) and EXPONENT.fullmatch(one) else one for one in values]
    return found


class SweepConfig(ReportConfig):
    """Runs a recipe once for every combination of settings and every seed, and reports success across seeds.

    Stages that do not depend on a varied setting are computed once per seed and shared. A stopped
    sweep resumes; more values or seeds can be added later. The folder gets a table (results.md,
    results.csv, results.json) and a figure (figure.svg).
    """

    recipe: str = setting(positional=True, description="a .yaml file, or the name of a shipped recipe")
    vary: Annotated[dict[str, list[JsonValue]], BeforeValidator(_values)] = Field(
        min_length=1,
        description="settings with their values, such as dpo.beta=0.01,0.1,0.5 or pairs.kinds=[episode],[parting]: "
        "STAGE.SETTING (a command or a name), defaults.SETTING or model; of several, all combinations are run",
    )
    seeds: int = Field(
        3, ge=1, le=1000, description="runs per combination; each adds 0, 1, 2, … to every seed in the recipe"
    )
    output: Path | None = setting(
        None, short="-o", description="the folder of the sweep (default: runs/NAME-sweep, with the name of the recipe)"
    )
    set: Annotated[dict[str, JsonValue], BeforeValidator(key_values)] = Field(
        {}, description="change the recipe for all runs, as in `bough run`: model=… or STAGE.SETTING=…"
    )
    jobs: int = Field(
        1,
        ge=1,
        le=1000,
        description="number of runs at the same time on this machine, each in a process of its own; "
        "with --cluster use --workers",
    )
    cluster: ClusterConfig = ClusterConfig()
    report_to: list[Literal["mlflow", "wandb", "tensorboard", "none"]] = Field(
        ["none"], description="trackers that each run reports to, or none"
    )
    dry_run: bool = Field(
        False, description="check all settings and print the runs and the stages they share; run nothing"
    )

    @model_validator(mode="after")
    def _jobs_are_for_one_machine(self) -> Self:
        if self.cluster.address is not None and self.jobs > 1:
            raise ValueError("`jobs` is the number of runs on this machine; with `cluster` use `workers`")
        return self


Notify = Callable[[str], None]
FILE_NAME, RUNS, LOGS = "sweep.json", "runs", "logs"
# More runs than this take months; a command line that asks for them is a mistake.
MAX_RUNS = 1000
MAX_NAME = 80


@dataclass(frozen=True)
class Variation:
    """One run: the values of the varied settings, the number of its seed (from 0), and the recipe with both."""

    values: dict[str, JsonValue]
    seed: int
    recipe: Recipe

    @property
    def label(self) -> str:
        return f"{label(self.values)}, seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of its folder: it depends on nothing but its own values and seed, so that others can be added."""
        written = label(self.values)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", written).strip("-.")
        simple = all(isinstance(value, int | float) for value in self.values.values())
        if not simple or len(plain) > MAX_NAME:  # two values may look alike without their punctuation
            plain = f"{plain[:MAX_NAME]}-{text_digest(written, size=4)}"
        return f"{plain}-seed-{self.seed}"


def variations(
    recipe: Path, vary: Mapping[str, Sequence[JsonValue]], seeds: int, changes: Mapping[str, JsonValue]
) -> list[Variation]:
    """Every combination in order, each with all seeds. InputError lists what cannot be varied."""
    if problems := list(_problems(vary, seeds, changes)):
        raise InputError("--vary cannot be applied:", problems)
    found = []
    for values in (dict(zip(vary, chosen, strict=True)) for chosen in itertools.product(*vary.values())):
        try:
            base = load_recipe(recipe, {**changes, **values})
        except InputError as error:
            raise InputError(error.message.replace("--set", "--vary or --set"), error.problems) from None
        found += [Variation(values, seed, shifted(base, seed)) for seed in range(seeds)]
    return found


def shifted(recipe: Recipe, by: int) -> Recipe:
    """The recipe with `by` strides added to its seed and to the seeds that stages set themselves.

    All randomness of the run changes: tasks, demonstrations, training and evaluation.
    """
    by *= 100_003  # a repeated round adds its number
    stages = copy.deepcopy(recipe.stages)
    for _, settings in all_stages(stages):
        if type(settings.get("seed")) is int:
            settings["seed"] += by
    return recipe.model_copy(update={"seed": recipe.seed + by, "stages": stages})


def _problems(vary: Mapping[str, Sequence[JsonValue]], seeds: int, changes: Mapping[str, JsonValue]) -> Iterator[str]:
    count = seeds
    for key, values in vary.items():
        count *= len(values)
        if key.rpartition(".")[2] == "seed":
            yield f"{key}: seeds are varied with --seeds N"
        elif "." not in key and key != "model":
            yield f"{key}: only model, defaults.SETTING and STAGE.SETTING can be varied, such as dpo.beta"
        if key in changes:
            yield f"{key} is also given with --set; give it once"
        if not values:
            yield f"{key} has no values; give at least one"
        for at, value in enumerate(values):
            if any(same(value, one) for one in values[:at]):
                yield f"{key} has the value {write_value(value)} twice"
    if count > MAX_RUNS:
        yield f"it asks for {count:,} runs; at most {MAX_RUNS:,} are possible"


class Sweep:
    """All runs of a sweep. Making one checks every setting of every run; nothing runs before `play`.

    `stamps` has the stages of each run with what determines their results. `failed` names the runs that failed.
    """

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
        self.name, self.settings = found[0].recipe.name, list(found[0].values)
        self.shared, self.failed = SharedStages(folder), dict[str, str]()
        self.runs = self._checked()
        outside: dict[Path, str] = {}
        self.stamps = [_stamps(run, outside) for run in self.runs]
        # The evaluations of each run's own model, as the names of their folders with their stamps.
        self.evaluations = [
            {stage.folder: stamp for stage, stamp in stages if evaluates_the_run(stage)} for stages in self.stamps
        ]
        self._check_effects()

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
            raise InputError(f"the sweep has {plural(len(problems), 'problem')}:", problems, hint=hint)
        return runs

    def _check_effects(self) -> None:
        """Every combination must be a different run whose difference is evaluated, on as many episodes."""
        if not self.evaluations[0]:
            raise InputError(
                f"the recipe {self.name} does not evaluate its model in an environment, so there is nothing to report; "
                "add a stage such as `- eval: {tasks: 100}`"
            )
        problems: dict[str, None] = {}
        for stage, given in (one for run in self.runs for one in run.settings()):
            if stage.verb == "eval" and given.get("stop_width") is not None:
                problems[
                    f"{stage.place}: stop_width ends evaluations at different sizes, whose seeds cannot be averaged; "
                    f"remove it, or --set {stage.name}.stop_width=null"
                ] = None
        first: dict[tuple[str, ...], Variation] = {}
        for one, evaluations in zip(self.variations, self.evaluations, strict=True):
            if not one.seed and (same := first.setdefault(tuple(evaluations.values()), one)) is not one:
                changed = {key: value for key, value in one.values.items() if same.values[key] != value}
                problems[
                    f"no evaluation depends on {label(changed)}: it gives the same numbers as {label(same.values)}"
                ] = None
        if problems:
            raise InputError("the sweep cannot show anything:", problems)

    def plan(self) -> Iterator[tuple[Variation, list[tuple[Planned, Variation | None]]]]:
        """Every run with its stages; a stage that an earlier run computes comes with that run."""
        first: dict[str, Variation] = {}
        for one, stages in zip(self.variations, self.stamps, strict=True):
            sources = [(stage, first.setdefault(stamp, one)) for stage, stamp in stages]
            yield one, [(stage, None if source is one else source) for stage, source in sources]

    def play(self, notify: Notify) -> list[SweepRow]:
        """Runs what has not run yet and writes the results."""
        self._check_folder()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be used as the folder of a sweep: {error.strerror}") from None
        try:
            with locked(self.folder / LOCK, wait=False):
                self._check_folder()
                refuse_links(
                    self.folder / LOGS, self.folder / RUNS, self.shared.index, *(run.folder for run in self.runs)
                )
                write_json(self.folder / FILE_NAME, self._about())
                self.failed = self._play_all(notify)
                return self._report()
        except BlockingIOError:
            raise InputError(f"{self.folder} is in use by another `bough sweep`; give another --output") from None

    def _check_folder(self) -> None:
        """A folder contains the sweeps of one recipe. Values and seeds may be added; finished stages are reused."""
        file = self.folder / FILE_NAME
        try:
            before = read_json(file)
        except FileNotFoundError:
            files = self.folder.iterdir() if self.folder.is_dir() else ()
            if any(path.name != LOCK and not is_draft(path, FILE_NAME) for path in files):
                raise InputError(f"{self.folder} contains other files; a sweep needs a folder of its own") from None
            return
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read: {error}") from None
        if not isinstance(before, dict) or before.get("recipe") != self.name:
            raise InputError(
                f"{self.folder} contains a sweep of another recipe than {self.name}; give another --output"
            )

    def _play_all(self, notify: Notify) -> dict[str, str]:
        labels = {run.folder.name: one.label for run, one in zip(self.runs, self.variations, strict=True)}
        done, logs = dict[str, str | None](), self.folder / LOGS

        def started(run: Run, number: int) -> None:
            notify(f"run {number} of {len(self.runs)}: {labels[run.folder.name]}")

        def ended(run: Run, failure: str | None) -> None:
            done[run.folder.name] = failure
            state = "finished" if failure is None else f"failed: {failure.splitlines()[0]}"
            notify(f"{labels[run.folder.name]}: {state}; {len(done)} of {plural(len(self.runs), 'run')} done")

        if self.cluster is not None:
            on_cluster(self.runs, self.cluster, self.folder, logs, started, ended, notify)
        elif self.jobs > 1:
            in_processes(self.runs, self.jobs, logs, started, ended)
        else:
            for number, run in enumerate(self.runs, 1):
                started(run, number)
                failure = None
                try:
                    with redirect_stdout(sys.stderr):  # what the stages print is progress here
                        run.play(lambda line: notify(f"  {line}"))
                except BoughError as error:
                    failure = str(error) or exception_line(error)
                except Exception as error:  # one failed run does not stop the others
                    failure = exception_line(error)
                ended(run, failure)
        return {name: failure for name in labels if (failure := done.get(name)) is not None}

    def rows(self) -> list[SweepRow]:
        """Every evaluation of every combination, from the runs that have finished it. Failed runs count for none."""
        seeds = len({one.seed for one in self.variations})
        found = []
        for evaluation, stamp in self.evaluations[0].items():
            others = [evaluations[evaluation] for evaluations in self.evaluations[seeds::seeds]]
            same = bool(others) and all(one == stamp for one in others)
            for start in (0,) if same else range(0, len(self.runs), seeds):
                finished = {}
                for one, run in list(zip(self.variations, self.runs, strict=True))[start : start + seeds]:
                    record = StageRecord.read(run.folder / evaluation)
                    if record is not None and record.finished and run.folder.name not in self.failed:
                        finished[one.seed] = Results.read(run.folder / evaluation).models[-1]
                rates = {seed: rate_of(model) for seed, model in finished.items()}
                success = across_seeds(list(finished.values()), LEVEL)
                lost = sum(len(model.lost) for model in finished.values())
                values = {} if same else self.variations[start].values
                found.append(SweepRow(values, evaluation, seeds, rates, success, lost))
        return found

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
        seeds = len(self.variations) // len(values)
        return {"recipe": self.name, "settings": self.settings, "combinations": values, "seeds": seeds}


def _stamps(run: Run, outside: dict[Path, str]) -> list[tuple[Planned, str]]:
    """The stages of a run with their stamps, known before anything runs; `outside` are digests of other inputs.

    A stage is stamped as in a run, but with the stamp of the stage that makes an input in place of the input's
    content. Two stages with one stamp have one result. After a gate the model may be either of two, so it gets a stamp
    of its own: a gate that rejects both of two models makes more stages equal than is known here.
    """
    artifacts, made, found = Artifacts(run.recipe.model), dict[str, str](), []

    def digest(path: Path) -> str:
        if str(path) in made:
            return made[str(path)]
        if path not in outside:
            outside[path] = content(path)
        return outside[path]

    for stage in run.stages:
        stamp = stamped(stage.verb, run.wiring.config(stage, artifacts), digest).fingerprint
        found.append((stage, stamp))
        if stage.gate is not None and evaluates_the_run(stage):
            model, gate = artifacts.model, stage.gate.model_dump_json()
            made[model] = text_digest(f"{digest(Path(model))} {stamp} {gate}", size=8)
        run.wiring.add(stage, artifacts)
        made[str(artifacts.by_name[stage.name])] = stamp
    return found
