"""Is evolving settings worth its compute? `bough evolve` against three searches that use as many tokens.

    python -m benchmarks.evolve_study household --jobs 8    # SmolLM2, SFT on demonstrations; for a GPU
    python -m benchmarks.evolve_study web --jobs 12         # the same on two pages; on a CPU
    python -m benchmarks.evolve_study household-grpo        # online GRPO from a trained adapter; hours of a GPU

| arm     | what it is                                                                        |
|---------|-----------------------------------------------------------------------------------|
| evolve  | N members, G generations of K updates, tournament with elitism                    |
| fixed   | one adapter with the given settings, about N times the updates                    |
| random  | the given settings and N - 1 random ones, trained to the end; the fittest is kept |
| halving | successive halving of the same N settings                                         |

The arms' numbers of updates are chosen so that all use as many tokens (computed in training, sampled for learning
and for selection), estimated from the demonstrations; the table says how many each has used. All arms of a seed
learn from the same demonstrations of the environment's expert, or start from one adapter that was trained on them,
which is not counted. Every arm's winner is evaluated on the same tasks of a split that nothing was trained or
selected on.

Everything is in FOLDER/WORLD and is resumed there: `start/` and, per seed and arm, the run, its evaluation
and `result.json`. With `--jobs`, arms run side by side, and what they print is in `log.txt`. `--limit-s` or an
interrupt stops them all and still prints the table of those that have finished.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.evolve_study_budget import Budget, Demonstrated
from benchmarks.evolve_study_jobs import Job, run_jobs
from benchmarks.evolve_study_table import Arm, table
from benchmarks.evolve_study_worlds import WORLDS, World

import bough
from bough.config.groups import key_values
from bough.experiments.evolve import evolve
from bough.experiments.evolve_settings import EvolveConfig
from bough.files import write_atomically, write_json

INTERRUPTED = 130  # as shells say it
ARMS = ("evolve", "fixed", "random", "halving")


class Study:
    """The arms of one world, in a folder."""

    def __init__(self, name: str, world: World, folder: Path) -> None:
        self.name, self.world, self.folder = name, world, folder

    def run(self, seeds: Sequence[int], arms: Sequence[str]) -> None:
        """Every arm of every seed, one after the other; those that are finished are read."""
        for seed in seeds:
            data = self._data(seed)
            for arm in arms:
                print(f"▸ {self.name}, seed {seed}: {arm}", file=sys.stderr, flush=True)
                self._finished(arm, seed, data)
                self.report()

    def run_side_by_side(
        self, seeds: Sequence[int], arms: Sequence[str], jobs: int, command: Sequence[str], gpu_share: float
    ) -> None:
        """The same in several processes, which `command` starts: first what arms learn from, then the arms.

        An arm is run on all seeds before the next one: the first ones take longest.
        """
        share = f"{gpu_share / jobs:.4f}"

        def job(seed: int, name: str, *arms: str) -> Job:
            words = ["--jobs", "1", "--gpu-share", share, "--seeds", f"{seed}", "--arms", *arms]
            return Job(f"seed {seed}: {name}", words, self._folder(name, seed) / "log.txt")

        failed: set[str] = set()

        def ended(one: Job, code: int) -> None:
            if code:
                failed.add(one.name)
                tail = one.log.read_text(errors="replace").splitlines()[-12:]
                print(f"{one.name} failed with exit code {code}:", *tail, sep="\n    ", file=sys.stderr, flush=True)
                return
            print(f"{one.name} has finished", file=sys.stderr, flush=True)
            self.report()

        starts = {seed: job(seed, "start") for seed in seeds if not self._started(seed)}
        run_jobs(list(starts.values()), command, jobs, ended)
        ready = [seed for seed in seeds if seed not in starts or starts[seed].name not in failed]
        run_jobs([job(seed, arm, arm) for arm, seed in product(arms, ready)], command, jobs, ended)

    def results(self) -> list[Arm]:
        """The finished arms of all seeds."""
        found = [json.loads(path.read_text()) for path in sorted(self.folder.glob("seed-*/*/result.json"))]
        order = sorted(found, key=lambda one: (ARMS.index(one["arm"]), one["seed"]))
        return [Arm.of(one, self.folder / f"seed-{one['seed']}" / one["arm"] / "evaluation") for one in order]

    def report(self) -> str:
        arms = self.results()
        write_json(self.folder / "results.json", {"world": self.name, "arms": [one.facts for one in arms]})
        text = f"# {self.name}\n\n{table(arms)}\n"
        write_atomically(self.folder / "results.md", text)
        return text

    def _folder(self, arm: str, seed: int) -> Path:
        """Of an arm, or of the `start` of all arms."""
        return self.folder / f"seed-{seed}" / arm

    def _finished(self, arm: str, seed: int, data: Mapping[str, Any]) -> None:
        folder, world = self._folder(arm, seed), self.world
        if (folder / "result.json").exists():
            return
        budget = expected_budget(world, self._demonstrations(seed))
        config = arm_config(arm, world, seed, budget, folder / "run", **data)
        found = evolve(config, notify=lambda line: print(line, file=sys.stderr, flush=True))
        release()
        tasks = {"tasks": world.test_tasks, "split": "unseen", "seed": seed, "concurrency": world.concurrency}
        bough.evaluate(found.weights, world.environment, output=folder / "evaluation", **tasks, **world.play)
        facts = {"arm": arm, "seed": seed, "updates": config.population.steps, "report": found.report}
        write_json(folder / "result.json", facts)

    def _demonstrations(self, seed: int) -> Path:
        return self._folder("start", seed) / "demonstrations.jsonl"

    def _started(self, seed: int) -> bool:
        """Whether what all arms of a seed need is there."""
        trained = self._folder("start", seed) / "sft" / "report.json"
        return self._demonstrations(seed).exists() and (self.world.start is None or trained.exists())

    def _data(self, seed: int) -> dict[str, Any]:
        """What all arms of a seed learn from or start from: demonstrations, or an adapter trained on them."""
        folder, world, file = self._folder("start", seed), self.world, self._demonstrations(seed)
        if not file.exists():
            play = {key: value for key, value in world.play.items() if key != "max_new_tokens"}
            settings = {"tasks": world.demonstrations, "seed": 1000 + seed, **play}
            played = bough.collect("expert", world.environment, output=folder / "demonstrations", **settings)
            draft = file.with_name("draft.jsonl")
            bough.write([one for one in played if one.success], draft)
            draft.replace(file)
        if world.start is None:
            return {"model": world.model, "train_file": file}
        trained = folder / "sft"
        if not (trained / "report.json").exists():
            again = (trained / "config.yaml").exists()
            bough.sft(world.model, file, output_dir=trained, seed=seed, resume=again, **world.start)
            release()
        return {"model": str(trained / "final")}


def release() -> None:
    """Gives the memory of a GPU back that nothing uses any more."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def expected_budget(world: World, demonstrations: Path) -> Budget:
    """The tokens of the evolve arm, if its episodes are as long as the demonstrations."""
    shown = Demonstrated.read(demonstrations, world.model)
    size = int(world.set["batch_size"])
    online = world.method == "grpo"
    update = size * shown.of_group(int(world.set["group_size"])) if online else shown.of_batch(size)
    return Budget.of(world, update=update, measure=world.eval_tasks * shown.answered)


def arm_config(arm: str, world: World, seed: int, budget: Budget, run: Path, **data: Any) -> EvolveConfig:
    """The settings of an arm as those of `bough evolve`."""
    settings: dict[str, Any] = {
        **data, **world.play, "method": world.method, "environment": world.environment, "split": "train",
        "concurrency": world.concurrency, "eval_tasks": world.eval_tasks, "set": dict(world.set),
        "mutate": dict(world.mutate), "population_size": world.members, "output_dir": run, "seed": seed,
        "resume": (run / "config.yaml").exists(),
    }  # fmt: skip
    if arm == "evolve":
        return EvolveConfig(**settings, generations=world.generations, steps=world.steps)
    settings["steps"] = budget.steps(world, arm)
    if arm == "halving":
        return EvolveConfig(**settings, halving=True)
    config = EvolveConfig(**settings, generations=1)
    if arm == "random":
        return config
    # A population of one is plain training, counted and measured in the same way; the command asks for two or more.
    return config.model_copy(update={"population": config.population.model_copy(update={"size": 1})})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--folder", type=Path, default=Path("runs/evolve-study"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--jobs", type=int, default=1, help="processes that run arms side by side")
    parser.add_argument("--gpu-share", type=float, help="share of the GPU's memory that all processes may take")
    parser.add_argument("--limit-s", type=float, default=0.0, help="seconds after which to stop (default: none)")
    parser.add_argument("--table-only", action="store_true", help="write the table of what has finished; run nothing")
    sizes = ("members", "generations", "steps", "eval_tasks", "test_tasks", "demonstrations", "concurrency")
    for name in sizes:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--model")
    parts = {"set": "settings of the method", "play": "settings of episodes", "start": "settings of the start's SFT"}
    for name, what in parts.items():
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="KEY=VALUE", help=f"other {what}")
    options = parser.parse_args()
    changes = {name: value for name in (*sizes, "model") if (value := getattr(options, name)) is not None}
    given = WORLDS[options.world]
    for name in parts:
        if words := key_values(getattr(options, name)):
            changes[name] = {**(getattr(given, name) or {}), **words}
    world = replace(given, **changes)
    if world.members & (world.members - 1):
        parser.error(f"--members is {world.members}; successive halving needs a power of 2, at least 2")
    if unknown := [arm for arm in options.arms if arm not in ARMS]:
        parser.error(f"--arms: {unknown[0]} is not an arm; choose from {', '.join(ARMS)}")
    if options.gpu_share and options.jobs == 1:
        limit_memory(options.gpu_share)
    study = Study(options.world, world, options.folder / options.world)
    stopped = False
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would ignore it
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, options.limit_s)
    try:
        if options.jobs > 1:
            command = ["-m", "benchmarks.evolve_study", *sys.argv[1:]]
            study.run_side_by_side(options.seeds, options.arms, options.jobs, command, options.gpu_share or 0.95)
        elif not options.table_only:
            study.run(options.seeds, options.arms)
    except KeyboardInterrupt:
        stopped = True
        print("stopped; these arms have finished:", file=sys.stderr)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    print(study.report())
    if stopped:
        raise SystemExit(INTERRUPTED)


def limit_memory(share: float) -> None:
    """Several processes have one GPU: each may take a share of its memory, and no more."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


if __name__ == "__main__":
    main()
