"""Held-out success of online GRPO against wall time, for several limits of staleness and several seeds.

    python benchmarks/staleness.py [--output FOLDER] [--limit-s 60] [--parallel 3] [--together]
    python benchmarks/staleness.py --options 'types=[pick_and_place_simple]' --turns 10 --eval-temperature 1

Household games, SmolLM2, batches of 8 tasks × 8 attempts. Arguments that are not of this script go
to `bough grpo`. All runs start from the same SFT of expert episodes, made first. The runs of one
staleness share the GPU (`--parallel` at a time, by default one for each seed), so runs of different
staleness never compete, and each wave has the same load. With `--together` they go seed by seed
instead, and the runs of one seed share the GPU: slower for each, but other programs on the machine
disturb all limits alike. A run is stopped after `--limit-s` seconds, its start included. Nothing is
downloaded.

FOLDER gets `staleness.csv`, a line for each batch, and `staleness.md`, the tables, which are also
printed: after each wave of runs, and after Ctrl-C with what was measured until then. Runs that are
complete in FOLDER are not done again. `--tables-only` reads FOLDER, of a run that was killed too.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from measure import machine, table

from bough.config.run_folder import MetricsFile, RunDir

COLUMNS = (
    *("step", "eval_success", "success", "reward", "episodes", "sampled_tokens_per_s", "batch_seconds"),
    *("sampling_share", "training_share", "overlap_share", "idle_share", "staleness_mean", "calls_stale"),
)
BOUGH = (sys.executable, "-m", "bough")
POLL_S = 0.5
PATIENCE_S = 15.0  # for a run to end its step and to save a checkpoint


@dataclass(frozen=True)
class Point:
    """A batch of a run: when it was complete, in seconds since the run began to sample, and its metrics."""

    staleness: int
    seed: int
    seconds: float
    values: dict[str, float]


@dataclass
class Run:
    """One run of online GRPO in a folder, as a process that is stopped after a while."""

    staleness: int
    seed: int
    options: argparse.Namespace
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    asked: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.options.output) / f"staleness-{self.staleness}-seed-{self.seed}"

    @property
    def over(self) -> Path:
        return self.folder.with_suffix(".done")

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def begin(self) -> None:
        options = self.options
        arguments = {
            "model": start_model(options), "environment": options.environment, "output_dir": self.folder,
            "max_staleness": self.staleness, "seed": self.seed, "max_steps": options.updates,
            "batch_size": options.tasks, "group_size": options.attempts, "max_turns": options.turns,
            "concurrency": 2 * options.tasks * options.attempts, "max_new_tokens": 64,
            "max_length": options.max_length, "learning_rate": options.learning_rate, "lr_scheduler": "constant",
            "warmup_ratio": 0, "eval_every": options.eval_every, "eval_tasks": options.eval_tasks,
            "logging_steps": 1, "save_steps": options.updates, "token_budget": options.token_budget,
        }  # fmt: skip
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
        given = {"--options": options.options, "--rewards": options.rewards}
        lists = [word for name, words in given.items() if words for word in (name, *words)]
        shutil.rmtree(self.folder, ignore_errors=True)  # of a run that was interrupted
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            command = [*BOUGH, "grpo", *flags, *lists, "--no-use-lora", "--no-watch", *options.more]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.began = time.monotonic()

    def ended(self) -> bool:
        """Whether the run is over, by itself or because its time is. Its metrics are complete at any moment."""
        assert self.process is not None
        code = self.process.poll()
        over_s = time.monotonic() - self.began - self.options.limit_s
        if code is None:
            if over_s >= 0:
                self.ask_to_stop()
            if over_s < PATIENCE_S:
                return False
            self.stop()
        elif code and not self.asked:
            print(f"{self.folder.name} failed:\n{self.log.read_text(errors='replace')[-2000:]}", flush=True)
        shutil.rmtree(RunDir(self.folder).checkpoints, ignore_errors=True)  # gigabytes that nothing reads
        self.over.touch()
        reached = [point.values.get("eval_success") for point in self.points()]
        print(f"{self.folder.name}: {len(reached)} batches, held-out success {reached}", flush=True)
        return True

    def ask_to_stop(self) -> None:
        """Ends the step under way: processes that share a GPU through MPS may fail with one that is killed."""
        if self.process is not None and not self.asked:
            self.process.send_signal(signal.SIGINT)
            self.asked = True

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """At once."""
        if self.process is not None and self.alive:
            self.process.kill()
            self.process.wait()

    def points(self) -> Iterator[Point]:
        file = self.folder / "metrics.jsonl"
        lines = [line for line in MetricsFile.read(file) if "batch_seconds" in line] if file.exists() else []
        for line, seconds in zip(lines, accumulate(line["batch_seconds"] for line in lines), strict=True):
            yield Point(self.staleness, self.seed, seconds, line)


def start_model(options: argparse.Namespace) -> str:
    return options.start or str(Path(options.output) / "start" / "final")


def make_start(options: argparse.Namespace) -> None:
    """Expert episodes and an SFT on them: a policy that wins some of the games."""
    folder = Path(options.output)
    if options.start or Path(start_model(options)).exists():
        return
    played, trained = folder / "expert", folder / "start"
    shutil.rmtree(trained, ignore_errors=True)
    collect = ["collect", "--model=expert", f"--environment={options.environment}", f"--tasks={options.expert_tasks}"]
    collect += ["--options", *options.options] if options.options else []
    sft = [
        "sft", f"--model={options.model}", f"--train-file={played}", "--no-use-lora", "--batch-size=16",
        f"--max-steps={options.sft_steps}", "--learning-rate=3e-4", f"--output-dir={trained}",
    ]  # fmt: skip
    for command in ([*collect, f"--output={played}"], sft):
        subprocess.run([*BOUGH, *command], check=True)


def play(runs: Sequence[Run], parallel: int) -> None:
    """Runs them, `parallel` at a time."""
    waiting, running = [run for run in runs if not run.over.exists()], list[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(waiting.pop(0))
                running[-1].begin()
            time.sleep(POLL_S)
            running = [run for run in running if not run.ended()]
    finally:
        for run in running:
            run.ask_to_stop()
        deadline = time.monotonic() + PATIENCE_S
        while any(run.alive for run in running) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for run in running:
            run.stop()


def waves(runs: Sequence[Run], options: argparse.Namespace) -> list[list[Run]]:
    """Which runs share the GPU: those of one limit, or with `together` those of one seed."""
    if options.together:
        return [[run for run in runs if run.seed == seed] for seed in options.seeds]
    return [[run for run in runs if run.staleness == limit] for limit in options.staleness]


def measured(points: Sequence[Point]) -> list[tuple[float, float]]:
    """When held-out success was measured, and what it was."""
    return [(p.seconds, p.values["eval_success"]) for p in points if p.values.get("eval_success") is not None]


def at(points: Sequence[Point], seconds: float) -> float | None:
    """The held-out success that was measured last by then."""
    known = [success for when, success in measured(points) if when <= seconds]
    return known[-1] if known else None


def until(points: Sequence[Point], target: float) -> float | None:
    """Seconds until held-out success was first at least `target`."""
    return next((when for when, success in measured(points) if success >= target), None)


def time_to_target(of: dict[int, list[list[Point]]], target: float | None) -> str:
    """Seconds to a fixed success; by default the highest that every run reached, in steps of 2.5%."""
    best = [max((success for _, success in measured(points)), default=0.0) for each in of.values() for points in each]
    if target is None:
        target = int(min(best, default=0.0) * 40) / 40
    rows = []
    for limit, each in of.items():
        found = [until(points, target) for points in each]
        reached = [seconds for seconds in found if seconds is not None]
        mean = f"{statistics.fmean(reached):.0f}" if reached else "–"
        rows.append([limit, mean, ", ".join("–" if one is None else f"{one:.0f}" for one in found)])
    heading = f"Seconds until held-out success was first at least {target:.1%}:"
    return f"{heading}\n\n{table(['staleness', 'mean of those that reached it', 'each seed'], rows)}"


def tables(runs: Sequence[Run], target: float | None) -> str:
    limits = sorted({run.staleness for run in runs if any(run.points())})
    of = {limit: [list(run.points()) for run in runs if run.staleness == limit] for limit in limits}
    longest = max((points[-1].seconds for each in of.values() for points in each if points), default=0.0)
    if not longest:
        return "No run has completed a batch; a longer --limit-s helps, or a better --start."
    curve = []
    for mark in (longest * step / 8 for step in range(1, 9)):
        row = [f"{mark:.0f}"]
        for limit in limits:
            found = [value for points in of[limit] if (value := at(points, mark)) is not None]
            row.append(f"{statistics.fmean(found):.1%} ({min(found):.1%}–{max(found):.1%})" if found else "–")
        curve.append(row)
    speed = []
    for limit in limits:
        later = [point.values for points in of[limit] for point in points[1:]]  # the first batch loads everything
        total = sum(line["batch_seconds"] for line in later) or float("nan")

        def mean(name: str, later: list[dict[str, float]] = later, total: float = total) -> float:
            return sum(line.get(name, 0.0) * line["batch_seconds"] for line in later) / total

        shares = [f"{mean(f'{what}_share'):.0%}" for what in ("sampling", "training", "overlap", "idle")]
        ages = [line.get("staleness_mean", 0.0) for line in later]
        speed.append(
            [
                *(limit, len(later), f"{total / max(1, len(later)):.1f}"),
                *(f"{mean('sampled_tokens_per_s'):,.0f}", *shares, f"{statistics.fmean(ages or [0.0]):.2f}"),
            ]
        )
    headings = ["staleness", "batches", "s per batch", "tokens/s", "sampling", "training", "both", "idle", "mean age"]
    return "\n\n".join(
        [
            "Held-out success against seconds, of which measuring it is a part, mean over the seeds (lowest–highest):",
            table(["seconds", *(f"staleness {limit}" for limit in limits)], curve),
            time_to_target(of, target),
            "All batches but the first of each run:",
            table(headings, speed),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--start", help="a policy to start from, instead of an SFT on the expert's episodes")
    parser.add_argument("--environment", default="household")
    parser.add_argument("--options", nargs="+", default=[], help="of the environment, as of bough grpo")
    parser.add_argument("--rewards", nargs="+", default=[], help="as of bough grpo, such as outcome=1 progress=0.5")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, help="runs at a time (default: one for each seed)")
    parser.add_argument("--together", action="store_true", help="all limits of staleness at a time, seed by seed")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds for each run, its start included")
    parser.add_argument("--target", type=float, help="held-out success to reach (default: what every run reached)")
    parser.add_argument("--updates", type=int, default=1000, help="updates at most")
    parser.add_argument("--tasks", type=int, default=8, help="tasks per batch")
    parser.add_argument("--attempts", type=int, default=8, help="attempts at each task")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--max-length", type=int, default=3072)
    parser.add_argument("--token-budget", type=int, default=8192, help="small, because runs share the memory")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--eval-every", type=int, default=2, help="batches between evaluations")
    parser.add_argument("--eval-tasks", type=int, default=64)
    parser.add_argument("--expert-tasks", type=int, default=400)
    parser.add_argument("--sft-steps", type=int, default=40)
    parser.add_argument("--tables-only", action="store_true", help="write the tables of what is in FOLDER; run nothing")
    options, options.more = parser.parse_known_args()
    runs = [Run(limit, seed, options) for limit in options.staleness for seed in options.seeds]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would ignore it
    try:
        if not options.tables_only:
            make_start(options)
            for wave in waves(runs, options):
                play(wave, options.parallel or len(wave))
                write(runs, options)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    write(runs, options)


def write(runs: Sequence[Run], options: argparse.Namespace) -> None:
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "staleness.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["staleness", "seed", "seconds", *COLUMNS])
        for point in (point for run in runs for point in run.points()):
            values = [point.values.get(name, "") for name in COLUMNS]
            lines.writerow([point.staleness, point.seed, f"{point.seconds:.2f}", *values])
    more = f"; {' '.join(options.more)}" if options.more else ""
    at_a_time = options.parallel or max(map(len, waves(runs, options)))
    text = (
        f"# Online GRPO at several limits of staleness\n\n{machine()}. "
        f"{' '.join([options.environment, *options.options])}, "
        f"{options.start or options.model}, batches of {options.tasks} × {options.attempts}, "
        f"at most {options.turns} turns, rewards {' '.join(options.rewards) or 'of the environment'}, "
        f"learning rate {options.learning_rate:g}, seeds {', '.join(map(str, options.seeds))}, "
        f"{at_a_time} runs at a time, {options.limit_s:.0f} s each{more}."
        f"\n\n{tables(runs, options.target)}\n"
    )
    (options.output / "staleness.md").write_text(text, encoding="utf-8")
    print(text, flush=True)


if __name__ == "__main__":
    main()
