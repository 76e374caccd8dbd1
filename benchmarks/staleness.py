"""Held-out success of online GRPO against wall time, for several limits of staleness and several seeds.

    python benchmarks/staleness.py [--output FOLDER] [--limit-s 75] [--parallel 3]

Household games, SmolLM2, batches of 32 tasks × 8 attempts. All runs start from the same SFT of
expert episodes, made first. The runs of one staleness share the GPU (`--parallel` at a time,
by default one for each seed), so runs of different staleness never compete, and each wave has the
same load. A run is stopped after `--limit-s` seconds. Nothing is downloaded.

What is in FOLDER already is not done again: a run that was stopped early resumes. FOLDER gets
`staleness.csv`, a line for each batch, and `staleness.md`, the tables.
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

from bough.training.metrics_file import MetricsFile

COLUMNS = (
    *("step", "eval_success", "success", "reward", "episodes", "sampled_tokens_per_s", "batch_seconds"),
    *("sampling_share", "training_share", "overlap_share", "idle_share", "staleness_mean", "calls_stale"),
)
BOUGH = (sys.executable, "-m", "bough")
POLL_S = 0.5


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

    @property
    def folder(self) -> Path:
        return Path(self.options.output) / f"staleness-{self.staleness}-seed-{self.seed}"

    @property
    def over(self) -> Path:
        return self.folder.with_suffix(".done")

    def begin(self) -> None:
        options = self.options
        arguments = {
            "model": start_model(options), "environment": options.environment, "output_dir": self.folder,
            "max_staleness": self.staleness, "seed": self.seed, "max_steps": options.updates,
            "batch_size": options.tasks, "group_size": options.attempts, "max_turns": options.turns,
            "concurrency": options.tasks * options.attempts, "max_new_tokens": 40, "max_length": options.max_length,
            "learning_rate": options.learning_rate, "eval_every": 1, "eval_tasks": options.eval_tasks,
            "logging_steps": 1, "save_steps": 5, "save_total_limit": 1,
        }  # fmt: skip
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
        resume = ["--resume"] if (self.folder / "config.yaml").exists() else []
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_suffix(".log").open("ab") as log:
            command = [*BOUGH, "grpo", *flags, "--no-use-lora", "--no-watch", *resume]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.began = time.monotonic()

    def ended(self) -> bool:
        """Whether the run is over, by itself or because its time is."""
        assert self.process is not None
        late = time.monotonic() - self.began > self.options.limit_s
        if self.process.poll() is None and not late:
            return False
        code = self.process.poll()
        if code is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        elif code and not list(self.points()):
            raise SystemExit(f"{self.folder.name} failed; see {self.folder.with_suffix('.log')}")
        self.over.touch()
        return True

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
            if run.process is not None and run.process.poll() is None:
                run.process.send_signal(signal.SIGINT)
                run.process.wait(60)


def at(points: Sequence[Point], seconds: float) -> float | None:
    """The held-out success that was measured last by then."""
    known = [point.values["eval_success"] for point in points if point.seconds <= seconds]
    return known[-1] if known else None


def tables(runs: Sequence[Run]) -> str:
    limits = sorted({run.staleness for run in runs})
    of = {limit: [list(run.points()) for run in runs if run.staleness == limit] for limit in limits}
    longest = max((points[-1].seconds for each in of.values() for points in each if points), default=0.0)
    if not longest:
        raise SystemExit("no run has completed a batch; a longer --limit-s helps, or a better --start")
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
                *(limit, sum(map(len, of[limit])), f"{total / max(1, len(later)):.1f}"),
                *(f"{mean('sampled_tokens_per_s'):,.0f}", *shares, f"{statistics.fmean(ages or [0.0]):.2f}"),
            ]
        )
    headings = ["staleness", "batches", "s per batch", "tokens/s", "sampling", "training", "both", "idle", "mean age"]
    return "\n\n".join(
        [
            "Held-out success against seconds of sampling and training, mean over the seeds (lowest–highest):",
            table(["seconds", *(f"staleness {limit}" for limit in limits)], curve),
            "All batches but the first of each run:",
            table(headings, speed),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--start", help="a policy to start from, instead of an SFT on the expert's episodes")
    parser.add_argument("--environment", default="household")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, help="runs at a time (default: one for each seed)")
    parser.add_argument("--limit-s", type=float, default=75.0, help="seconds for each run, its start included")
    parser.add_argument("--updates", type=int, default=100, help="updates at most")
    parser.add_argument("--tasks", type=int, default=32, help="tasks per batch")
    parser.add_argument("--attempts", type=int, default=8, help="attempts at each task")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--max-length", type=int, default=3072)
    parser.add_argument("--learning-rate", type=float, default=3e-6)
    parser.add_argument("--eval-tasks", type=int, default=64)
    parser.add_argument("--expert-tasks", type=int, default=400)
    parser.add_argument("--sft-steps", type=int, default=60)
    options = parser.parse_args()
    make_start(options)
    runs = [Run(limit, seed, options) for limit in options.staleness for seed in options.seeds]
    for limit in options.staleness:
        play([run for run in runs if run.staleness == limit], options.parallel or len(options.seeds))
    with (options.output / "staleness.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["staleness", "seed", "seconds", *COLUMNS])
        for point in (point for run in runs for point in run.points()):
            values = [point.values.get(name, "") for name in COLUMNS]
            lines.writerow([point.staleness, point.seed, f"{point.seconds:.2f}", *values])
    text = (
        f"# Online GRPO at several limits of staleness\n\n{machine()}. {options.environment}, "
        f"{options.start or options.model}, batches of "
        f"{options.tasks} × {options.attempts}, seeds {', '.join(map(str, options.seeds))}, "
        f"{options.parallel or len(options.seeds)} runs at a time, {options.limit_s:.0f} s each.\n\n{tables(runs)}\n"
    )
    (options.output / "staleness.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
