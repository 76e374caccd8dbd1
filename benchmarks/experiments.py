"""Runs the experiments of the results page: sweeps of shipped recipes, and a table of what they found.

    python -m benchmarks.experiments NAME [NAME ...] [--data data] [--folder runs/experiments] [--limit-s 540]

Several experiments run side by side, each in processes of its own, which share the GPU's memory equally. After
`--limit-s` seconds they are stopped, and the exit code is 3; the same command resumes them. Each time a table of all
that is finished is written to `--results`, one file per experiment, with the figures of its sweeps. `--prepare` runs
only what needs no model, such as the expert's episodes: it can be done before, on a machine without a GPU, if `--data`
has the same relative path there. `--dry-run` checks the settings of all runs and prints the commands.

The folder `--data` contains what the experiments read, under these names:

    alfworld/valid_seen/                           the official ALFWorld games
    math/gsm8k.jsonl                               GSM8K's training set: question, answer
    math/programs.jsonl                            its problems as programs, from `benchmarks/gsm8k_programs.py`
    models/coder-0.5b.gguf, models/coder-1.5b.gguf   Qwen2.5-Coder-Instruct
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.experiment_table import tables

from bough.experiments.recipe import Planned
from bough.experiments.run import Run
from bough.experiments.sweep import Sweep as Runs
from bough.experiments.sweep import SweepConfig
from bough.experiments.sweep_processes import gpu_share
from bough.terminal import console

STOPPED = 3
# What a sweep writes about itself.
OF_SWEEP = ("results.md", "figure.svg")
SMALL = "model=$data/models/coder-0.5b.gguf"
MATH = ("defaults.options.file=$data/math/gsm8k.jsonl", "demonstrations.task_file=$data/math/programs.jsonl")
OUTCOME, TOOLS = "outcome: {weight: 1, failure: -1}", "tool_call: {weight: 1, failure: -1}"
OVERLONG = "overlong: {weight: 1, max_length: 1024, buffer: 512}"


@dataclass(frozen=True)
class Sweep:
    """The arguments of one `bough sweep`; `$data` stands for the folder of the data."""

    recipe: str
    vary: tuple[str, ...] = ("model=smollm2",)
    changes: tuple[str, ...] = ()
    seeds: int = 3
    jobs: int = 3

    def limited(self, seeds: int | None, jobs: int | None) -> Sweep:
        """The same sweep with at most this many seeds, and runs side by side."""
        return replace(self, seeds=min(seeds or self.seeds, self.seeds), jobs=min(jobs or self.jobs, self.jobs))

    def command(self, folder: Path, data: Path, more: Sequence[str]) -> list[str]:
        words = [self.recipe, "--vary", *self.vary, "--seeds", f"{self.seeds}", "--jobs", f"{self.jobs}"]
        words += ["--output", f"{folder}"]
        changes = [*self.changes, *more]
        words += ["--set", *changes] if changes else []
        return [sys.executable, "-m", "bough", "sweep", *(word.replace("$data", f"{data}") for word in words)]


# An adapter instead of all weights: small enough to be published, and it needs higher learning rates.
ADAPTER = (
    "defaults.use_lora=true", "sft.learning_rate=1e-3", "corrected.learning_rate=5e-4", "grpo.learning_rate=5e-5",
)  # fmt: skip
# Runs side by side share the GPU's time: compiled, the first SFT needs half as much of it. The later ones are short.
ALFWORLD = ("seen.options.games=$data/alfworld", "sft.compile=true")
# The sweeps of an experiment run one after the other in one folder, so that they share stages.
EXPERIMENTS: dict[str, tuple[Sweep, ...]] = {
    "alfworld": (Sweep("alfworld", changes=ALFWORLD),),
    "alfworld-adapter": (Sweep("alfworld", changes=(*ALFWORLD, *ADAPTER, "sft.max_steps=1000"), seeds=1, jobs=1),),
    "alfworld-alone": (
        Sweep("alfworld-alone", (SMALL,), changes=("seen.options.games=$data/alfworld",), seeds=1, jobs=1),
    ),
    # The same with one solved game in the rules, as ReAct's prompt has: still no expert, but not without any help.
    "alfworld-alone-example": (
        Sweep(
            "alfworld-alone",
            (SMALL,),
            changes=(
                "seen.options.games=$data/alfworld",
                "seen.options.example=true",
                "defaults.options.example=true",
            ),
            seeds=1,
            jobs=1,
        ),
    ),
    "mistakes": (Sweep("household-mistakes"),),
    "miniwob": (Sweep("miniwob-25", seeds=1, jobs=1),),
    "miniwob-adapter": (Sweep("miniwob-25", changes=ADAPTER, seeds=2, jobs=2),),
    "math": (
        # Without the tool-call reward, without the overlong penalty, with a symmetric clip.
        Sweep(
            "math-tcr",
            (f"grpo.rewards={{{OUTCOME}, {TOOLS}, {OVERLONG}}},{{{OUTCOME}, {OVERLONG}}},{{{OUTCOME}, {TOOLS}}}",),
            (SMALL, *MATH),
            seeds=1,
        ),
        Sweep("math-tcr", ("grpo.clip_high=0.28,0.2",), (SMALL, *MATH), seeds=1, jobs=2),
        Sweep("math-tcr", ("grpo.learning_rate=1e-6,2e-6",), (SMALL, *MATH), seeds=1, jobs=2),
    ),
    "ef-dpo": (
        Sweep("ef-dpo-miniwob", ("pairs.kinds=[episode],[parting],[episode,parting]",), jobs=6),
        Sweep("ef-dpo-miniwob", ("dpo.beta=0.01,0.05,0.1,0.2,0.5",), jobs=6),
        Sweep("ef-dpo-miniwob", ("demonstrations.tasks=5,10,20,50,100",), jobs=6),
    ),
    "ef-dpo-dense": (
        Sweep(
            "ef-dpo-miniwob",
            ("pairs.progress_margin=null,0.25",),
            ("defaults.options.pages=[click-button,click-checkboxes]", "defaults.max_turns=8"),
        ),
    ),
    "functions": (Sweep("bfcl", (SMALL,), seeds=1, jobs=1),),
    "distill": (
        Sweep(
            "distill-household",
            ("model=$data/models/coder-1.5b.gguf",),
            ("student.model=$data/models/coder-0.5b.gguf",),
            seeds=1,
            jobs=1,
        ),
    ),
    # Where the large model is not at hand: teacher and student of one size, the teacher with 20 times the episodes.
    "distill-smollm2": (
        Sweep(
            "distill-household",
            changes=(
                "demonstrations.tasks=4000",
                "student.model=smollm2",
                "teacher.learning_rate=3e-4",
                "student.learning_rate=3e-4",
                "imitation.learning_rate=1e-4",
                "distill.learning_rate=1e-4",
                "distill.max_steps=25",
                "teacher-play.tasks=800",
                "student.token_budget=16384",
                "imitation.token_budget=16384",
                "distill.token_budget=8192",
            ),
            jobs=1,
        ),
    ),
    # On a CPU, on pages where the student is mostly in states that the teacher knows.
    "distill-web": (Sweep("benchmarks/distill-web.yaml", ("distill.beta=1,0.5",), seeds=1, jobs=1),),
}


@dataclass
class Running:
    """An experiment in progress: the process of its current sweep, and the commands that are left."""

    name: str
    commands: list[list[str]]
    folder: Path
    env: dict[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None
    ended: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> bool:
        return self.process is not None or bool(self.commands)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.name}.log")

    def advance(self) -> bool:
        """Starts the next sweep if none is running; whether there is anything left to wait for."""
        if self.process is not None:
            if self.process.poll() is None:
                return True
            self._end(self.process.returncode)
        if not self.commands:
            return False
        command = self.commands.pop(0)
        for file in OF_SWEEP:  # those of the sweep before are not this one's, if it fails
            (self.folder / file).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            log.write(f"\n$ {shlex.join(command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=self.env)
        return True

    def _end(self, code: int) -> None:
        """Keeps the sweep's own table and figure: the next sweep in the folder writes others in their place."""
        self.process, self.ended = None, self.ended + 1
        if code:
            self.failed.append(f"sweep {self.ended} ended with exit code {code}; its output is in {self.log.name}")
        for file in OF_SWEEP:
            if (self.folder / file).exists():
                kept = self.folder.with_name(f"{self.name}-{self.ended}{Path(file).suffix}")
                shutil.copyfile(self.folder / file, kept)

    def stop(self) -> None:
        """Ends the sweep and every process that it started."""
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with suppress(ProcessLookupError):  # what the sweep itself has left
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(experiments: Sequence[Running], limit_s: float) -> None:
    """Runs all experiments side by side until they end or the limit is reached."""
    end = time.monotonic() + limit_s
    try:
        while sum(one.advance() for one in experiments) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        for one in experiments:
            one.stop()


def prepare(sweep: Sweep, folder: Path, data: Path, more: Sequence[str]) -> int:
    """Plays the stages of the sweep's runs that need no model; its exit code."""
    given = [one.replace("$data", f"{data}") for one in (*sweep.changes, *more)]
    vary = [one.replace("$data", f"{data}") for one in sweep.vary]
    playing = Runs.configured(SweepConfig(recipe=sweep.recipe, vary=vary, seeds=sweep.seeds, set=given, output=folder))
    for run in playing.runs:
        run.stages = [stage for stage, by_expert in _played_by(run) if by_expert]
    playing.play(console.announce)
    return 1 if playing.failed else 0


def _played_by(run: Run) -> Iterator[tuple[Planned, bool]]:
    """Every stage, and whether only the expert plays in it or in the episodes that it selects from."""
    expert = False
    for stage, given in run.settings():
        if "model" in given:
            expert = given["model"] in ("expert", ["expert"])
        yield stage, expert and stage.verb in ("collect", "eval", "demos")


def report(one: Running, commands: Sequence[Sequence[str]]) -> str:
    """The experiment's Markdown: its commands, the table of each sweep, and what each stage gained."""
    parts = [f"# {one.name}"]
    if one.unfinished:
        parts.append("Not finished: what follows is not all of it.")
    parts += [f"Failed: {why}." for why in one.failed]
    for number, command in enumerate(commands, 1):
        parts.append(f"```sh\n{shlex.join(['bough', *command[3:]])}\n```")
        table = one.folder.with_name(f"{one.name}-{number}.md")
        parts += [table.read_text().strip()] if table.exists() else []
    runs = one.folder / "runs"
    parts.append((tables(runs) if runs.is_dir() else "") or "No evaluation has finished.")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(EXPERIMENTS), metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--folder", type=Path, default=Path("runs/experiments"), help="one folder per experiment in it")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--limit-s", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--seeds", type=int, help="at most this many seeds")
    parser.add_argument("--jobs", type=int, help="at most this many runs of an experiment side by side")
    parser.add_argument("--set", nargs="*", default=[], help="more changes to the recipes, as in `bough sweep`")
    parser.add_argument("--prepare", action="store_true", help="run only the stages that need no model")
    parser.add_argument("--dry-run", action="store_true", help="check the settings and print the commands; run nothing")
    parser.add_argument("--tables-only", action="store_true", help="write the tables of what has finished; run nothing")
    options = parser.parse_args()
    sweeps = {name: [one.limited(options.seeds, options.jobs) for one in EXPERIMENTS[name]] for name in options.names}
    commands = {
        name: [one.command(options.folder / name, options.data, options.set) for one in several]
        for name, several in sweeps.items()
    }
    if options.dry_run:
        every = [command for several in commands.values() for command in several]
        return max(subprocess.run([*command, "--dry-run"]).returncode for command in every)
    for folder in (options.folder, options.results):
        folder.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        folders = [(one, options.folder / name) for name, several in sweeps.items() for one in several]
        return max(prepare(sweep, folder, options.data, options.set) for sweep, folder in folders)
    jobs = sum(max(one.jobs for one in several) for several in sweeps.values())
    env = os.environ | gpu_share(jobs)
    running = [Running(name, list(given), options.folder / name, env) for name, given in commands.items()]
    if not options.tables_only:
        run(running, options.limit_s)
    for one in running:
        text = report(one, commands[one.name])
        (options.results / f"{one.name}.md").write_text(text)
        for figure in options.folder.glob(f"{one.name}-[0-9].svg"):
            shutil.copyfile(figure, options.results / figure.name)
        print(text, *one.failed, sep="\n", flush=True)
    if any(one.unfinished for one in running):
        return STOPPED
    return 1 if any(one.failed for one in running) else 0


if __name__ == "__main__":
    sys.exit(main())
