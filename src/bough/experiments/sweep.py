"""A sweep in its folder: checked as a whole, run here, in processes or on a cluster, resumed, and reported."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, JsonValue, model_validator

from bough.config.groups import ClusterConfig, ReportConfig, key_values
from bough.config.yaml_file import read_value
from bough.errors import BoughError, InputError, exception_line
from bough.evaluation.results import Results
from bough.evaluation.success import across_seeds, rate_of
from bough.experiments.recipe import Planned, Recipe, find_recipe
from bough.experiments.record import SharedStages, StageRecord, content
from bough.experiments.run import LOCK, Run
from bough.experiments.sweep_table import LEVEL, SweepRow, Variation, as_csv, draw, label, markdown, variations
from bough.experiments.wiring import Artifacts, evaluates_the_run, stamped
from bough.files import (
    is_draft,
    locked,
    open_own,
    read_json,
    refuse_links,
    remove,
    text_digest,
    write_atomically,
    write_json,
)
from bough.ledger import plural
from bough.rollouts.ray import connected, make_plan, nodes
from bough.rollouts.ray_workers import Tasks, WorkLostError, hide_gpus
from bough.terminal import console
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
        if not equals or not text.strip():
            raise ValueError(f"{word!r} must be written as SETTING=VALUE,VALUE, such as dpo.beta=0.01,0.1,0.5")
        if key in found:
            raise ValueError(f"{key} is given twice; list all its values after one {key}=")
        try:
            values = read_value(f"[{text}]")
        except yaml.YAMLError as error:
            raise ValueError(f"{word!r} cannot be read: values are written as in YAML ({error})") from None
        found[key] = [float(one) if isinstance(one, str) and EXPONENT.fullmatch(one) else one for one in values]
    return found


class SweepConfig(ReportConfig):
    """Runs a recipe once for every combination of settings and every seed, and reports success across seeds.

    Stages that do not depend on a varied setting are computed once per seed and shared. A stopped
    sweep resumes; more values or seeds can be added later. The folder gets a table (results.md,
    results.csv, results.json) and a figure (figure.svg).
    """

    recipe: str = Field(
        description="a .yaml file, or the name of a shipped recipe",
        json_schema_extra={"positional": True},
    )
    vary: Annotated[dict[str, list[JsonValue]], BeforeValidator(_values)] = Field(
        min_length=1,
        description="settings with their values, such as dpo.beta=0.01,0.1,0.5 or pairs.kinds=[episode],[parting]: "
        "STAGE.SETTING (a command or a name), defaults.SETTING or model; of several, all combinations are run",
    )
    seeds: int = Field(
        3, ge=1, le=1000, description="runs per combination; each adds 0, 1, 2, … to every seed in the recipe"
    )
    output: Path | None = Field(
        None,
        description="the folder of the sweep (default: runs/NAME-sweep, with the name of the recipe)",
        json_schema_extra={"short": "-o"},
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


# Runs in processes of their own, several at a time. A process ends with the one that started it.
# `python -m bough.experiments.sweep` is such a process: it reads one line of JSON from stdin, plays the run, and
# writes how it ended to stdout. Everything else it prints goes to its log.

# Where torch reads settings of its memory.
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Of a GPU: each process also has a context of its own there.
SHARED = 0.95
Started = Callable[[Run, int], None]
Ended = Callable[[Run, str | None], None]


def in_processes(runs: Sequence[Run], jobs: int, logs: Path, started: Started, ended: Ended) -> dict[str, str]:
    """Plays all runs on this machine, `jobs` at a time. Returns why runs failed, by the names of their folders."""
    logs.mkdir(parents=True, exist_ok=True)
    children: list[subprocess.Popen[bytes]] = []
    env = os.environ | gpu_share(min(jobs, len(runs)))

    def play(run: Run) -> str | None:
        return play_in_child(order_of(run), log_of(run, logs), children, env=env)

    def stop() -> None:
        for child in list(children):
            child.terminate()

    return several_at_a_time(runs, jobs, play, stop, started, ended)


def several_at_a_time(
    runs: Sequence[Run],
    jobs: int,
    play: Callable[[Run], str | None],
    stop: Callable[[], None],
    started: Started,
    ended: Ended,
) -> dict[str, str]:
    """Calls `play` for all runs, `jobs` at a time; it returns why a run failed. `stop` ends those that are playing.

    Returns why runs failed, by the names of their folders.
    """
    failed: dict[str, str] = {}
    telling = threading.Lock()

    def work(run: Run, number: int) -> str | None:
        with telling:
            started(run, number)
        return play(run)

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(work, run, number): run for number, run in enumerate(runs, 1)}
        for future in as_completed(futures):
            run, failure = futures[future], future.result()
            with telling:
                ended(run, failure)
            if failure is not None:
                failed[run.folder.name] = failure
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return {run.folder.name: failed[run.folder.name] for run in runs if run.folder.name in failed}


def gpu_share(processes: int) -> dict[str, str]:
    """Environment variables that give each of several processes an equal part of every GPU's memory.

    An engine takes most of what is free, which would leave nothing for the training of the process beside it.
    Settings of the user's own stay as they are.
    """
    if processes < 2 or any(name in os.environ for name in ALLOCATOR):
        return {}
    return {ALLOCATOR[0]: f"per_process_memory_fraction:{SHARED / processes:.3f}"}


def log_of(run: Run, logs: Path) -> Path:
    """Where the process of a run writes what it prints."""
    return logs / f"{run.folder.name}.log"


def play_in_child(
    order: Mapping[str, Any],
    log: Path,
    children: list[subprocess.Popen[bytes]],
    working_folder: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str | None:
    """Plays the run of `order` in a process, which is in `children` meanwhile; returns why it failed."""
    with os.fdopen(open_own(log), "ab") as said:
        command = [sys.executable, "-m", "bough.experiments.sweep"]
        child = subprocess.Popen(  # noqa: S603  ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=working_folder, env=env
        )
        children.append(child)
        assert child.stdin is not None and child.stdout is not None
        with child.stdin, child.stdout:
            try:
                child.stdin.write(json.dumps(order).encode() + b"\n")
                child.stdin.flush()
            except BrokenPipeError:  # it ended before it read; its exit code is reported below
                pass
            answer = child.stdout.read()
        child.wait()
        children.remove(child)
    if not answer:
        return f"its process ended with exit code {child.returncode}; its output is in {log}"
    failure: str | None = json.loads(answer)["failure"]
    return failure


def order_of(run: Run, *, wait_s: float = 0) -> dict[str, Any]:
    """What a process needs to play the run. It waits up to `wait_s` for another process that is in the run's folder."""
    assert run.shared is not None
    return {
        "recipe": run.recipe.model_dump(mode="json"),
        "folder": str(run.folder),
        "shared": str(run.shared.folder),
        "report_to": run.report_to,
        "wait_s": wait_s,
    }


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = json.loads(orders.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failure = None
    try:
        wait_until_free(Path(order["folder"]) / LOCK, order["wait_s"])
        shared = SharedStages(Path(order["shared"]))
        run = Run(Recipe(**order["recipe"]), Path(order["folder"]), report_to=order["report_to"], shared=shared)
        run.play(console.announce)
    except BoughError as error:
        failure = str(error) or exception_line(error)
    except Exception as error:  # reported like any other failure; the log has the traceback
        sys.excepthook(type(error), error, error.__traceback__)
        failure = exception_line(error)
    os.write(answer, json.dumps({"failure": failure}).encode())


def wait_until_free(lock: Path, seconds: float) -> None:
    """Waits while another process holds the lock: one on a machine that was lost may work on for a moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with locked(lock, wait=False):
                return
        except BlockingIOError:
            time.sleep(0.2)


def _end_with_parent() -> None:
    """Stdin ends when the parent has ended, however it did: a restarted sweep must find no run in use."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()


# Which stages of a sweep's runs are the same, known before anything runs.
# A stage is stamped as in a run, but with the stamp of the stage that makes an input in place of the input's content.
# Two stages with one stamp have one result. After a gate the model may be either of two, so it gets a stamp of its
# own: a gate that rejects both of two models makes more stages equal than is known here.


@dataclass(frozen=True)
class StampedStage:
    """A stage of a run, and what determines its result."""

    stage: Planned
    stamp: str


def stamps(runs: Iterable[Run]) -> list[list[StampedStage]]:
    """The stages of each run with their stamps."""
    outside: dict[Path, str] = {}  # inputs from outside the sweep, which many runs read
    return [_stamps(run, outside) for run in runs]


def _stamps(run: Run, outside: dict[Path, str]) -> list[StampedStage]:
    artifacts, made, found = Artifacts(run.recipe.model), dict[str, str](), []

    def digest(path: Path) -> str:
        if str(path) in made:
            return made[str(path)]
        if path not in outside:
            outside[path] = content(path)
        return outside[path]

    for stage in run.stages:
        stamp = stamped(stage.verb, run.wiring.config(stage, artifacts), digest).fingerprint
        found.append(StampedStage(stage, stamp))
        if stage.gate is not None and evaluates_the_run(stage):
            model, gate = artifacts.model, stage.gate.model_dump_json()
            made[model] = text_digest(f"{digest(Path(model))} {stamp} {gate}", size=8)
        run.wiring.add(stage, artifacts)
        made[str(artifacts.by_name[stage.name])] = stamp
    return found


# Whether the nodes of a cluster share the folder of a sweep: same files, and locks that hold across nodes.


@dataclass(frozen=True)
class Token:
    """A file that every node must see. The process that made it holds the lock of the folder meanwhile.

    `working_folder` is where relative paths in the recipe begin; `version` is that of Bough.
    """

    folder: Path
    name: str
    text: str
    working_folder: Path
    version: str


@contextmanager
def token_in(folder: Path) -> Iterator[Token]:
    """A new token in `folder`, removed at the end."""
    token = Token(
        folder.absolute(), f".token-{secrets.token_hex(8)}", secrets.token_hex(8), Path.cwd(), version("bough")
    )
    write_atomically(token.folder / token.name, token.text)
    try:
        yield token
    finally:
        remove(token.folder / token.name)


def problem_here(token: Token) -> str | None:
    """Why this machine cannot work in the token's folder; None if it can."""
    if (found := version("bough")) != token.version:
        return f"it has Bough {found}, and the machine of the sweep {token.version}"
    try:
        seen = (token.folder / token.name).read_text()
    except OSError:
        seen = ""
    if seen != token.text:
        return f"it does not see the files in {token.folder}"
    try:
        with locked(token.folder / LOCK, wait=False):
            return f"locks in {token.folder} do not hold across machines; mount that disk with file locks"
    except BlockingIOError:  # as it must be: the sweep holds it
        pass
    if not token.working_folder.is_dir():
        return f"it has no folder {token.working_folder}, where relative paths of the recipe begin"
    return None


def check_shared(folder: Path, problems: Mapping[str, str | None]) -> None:
    """InputError if a node, named by its address, has a problem with the folder."""
    found = [f"node {node}: {problem}" for node, problem in problems.items() if problem is not None]
    if found:
        raise InputError(f"{folder} must be on a disk that all nodes share; give another --output:", found)


# The runs of a sweep on a cluster: each in a process on one of the nodes, as on one machine.
# Every node works in the sweep's own folder, so runs find each other's finished stages and resume after their node
# was lost. A process ends with the worker that started it, and a worker with the sweep.

# A lost node may not know it yet, and a file server keeps the locks of a lost client for up to 90 s.
WAIT_S = 120.0


def on_cluster(
    runs: Sequence[Run],
    config: ClusterConfig,
    folder: Path,
    logs: Path,
    started: Started,
    ended: Ended,
    notify: Notify,
) -> dict[str, str]:
    """Plays all runs on the cluster. The lock of `folder`, the sweep's own, is held meanwhile.

    Returns why runs failed, by the names of their folders.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with connected(config), token_in(folder) as token:
        plan = make_plan(config, nodes(), concurrency=len(runs), uses_gpu=True)
        notify(f"cluster of {plan.cluster}: up to {plural(plan.workers, 'run')} at the same time")
        tasks = Tasks(plan, config.timeout_s, notify)
        check_shared(folder, tasks.on_each_node(problem_here, token))

        def play(run: Run) -> str | None:
            order, log = order_of(run, wait_s=WAIT_S), log_of(run, logs).absolute()
            try:
                failure: str | None = tasks.call(run.folder.name, _play, order, log, token, plan.gpus_per_worker)
            except WorkLostError as error:
                return str(error)
            return failure

        return several_at_a_time(runs, plan.workers, play, tasks.stop, started, ended)


def _play(order: Mapping[str, Any], log: Path, token: Token, gpus: float) -> str | None:
    """Plays a run on the node that this is called on, with this many of its GPUs; returns why it failed."""
    if not gpus:
        hide_gpus()
    if (problem := problem_here(token)) is not None:  # it may have joined after the others were checked
        return f"a node of the cluster cannot play it: {problem}"
    return play_in_child(order, log, [], token.working_folder)
