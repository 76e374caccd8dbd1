"""Is evolving settings worth its compute? `bough evolve` against three searches that use as many tokens.

    python -m benchmarks.evolve_study household    # SmolLM2, online GRPO; for a GPU
    python -m benchmarks.evolve_study web          # SmolLM2, SFT on demonstrations of two pages; on a CPU

| arm     | what it is                                                                        |
|---------|-----------------------------------------------------------------------------------|
| evolve  | N members, G generations of K updates, tournament with elitism                    |
| fixed   | one adapter with the given settings, about N times the updates                    |
| random  | the given settings and N - 1 random ones, trained to the end; the fittest is kept |
| halving | successive halving of the same N settings                                         |

The first arm's tokens (computed in training, sampled for learning and for selection) are the budget of
the others; the table says how much of it each has used. All arms start from one adapter, trained on
demonstrations of the environment's expert, which is not counted. Every arm's winner is evaluated on the
same tasks of a split that nothing was trained or selected on.

Everything is in FOLDER/WORLD and is resumed there: `start/` and, per seed and arm, the run, its evaluation
and `result.json`. After each arm `results.json` and `results.md` are written again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.evolve_study_table import Arm, table

import bough
from bough.config.environment import key_values
from bough.disk import write_atomically, write_json
from bough.evolution.evolve import evolve
from bough.evolution.settings import EvolveConfig
from bough.terminal.members import MembersProgress

ARMS = ("evolve", "fixed", "random", "halving")


@dataclass(frozen=True)
class World:
    """Where the arms are compared, and what they do there. `play` goes to every command that plays episodes."""

    environment: str
    method: str
    play: Mapping[str, Any]
    set: Mapping[str, Any]
    mutate: Mapping[str, Any]
    demonstrations: int
    start: Mapping[str, Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    members: int = 8
    generations: int = 5
    steps: int = 4
    eval_tasks: int = 64
    test_tasks: int = 300
    model: str = "smollm2"


WORLDS = {
    "household": World(
        environment="household",
        method="grpo",
        play={"max_turns": 40, "max_new_tokens": 64},
        demonstrations=1000,
        start={"max_steps": 150, "batch_size": 16, "learning_rate": 1e-3},
        set={"learning_rate": 5e-5, "batch_size": 8, "group_size": 8},
        mutate={"learning_rate": "5e-6..5e-4", "temperature": "0.7..1.3", "clip_high": "0.2..0.4"},
        more={"concurrency": 128},
    ),
    "web": World(
        environment="web",
        method="sft",
        play={
            "options": {"pages": ["click-button", "enter-text"], "actions": ["click", "fill"]},
            **{"max_turns": 3, "max_errors": 1, "max_new_tokens": 24},
        },
        demonstrations=80,
        set={"learning_rate": 2e-4, "batch_size": 4},
        mutate={"learning_rate": "2e-5..2e-3", "batch_size": "2..8", "weight_decay": "0..0.1"},
        members=4,
        generations=3,
        steps=6,
        eval_tasks=24,
        test_tasks=100,
    ),
}


class Study:
    """The arms of one world, in a folder."""

    def __init__(self, name: str, world: World, folder: Path) -> None:
        self.name, self.world, self.folder = name, world, folder

    def run(self, seeds: Sequence[int], arms: Sequence[str]) -> None:
        """Every arm of every seed; those that are finished are read."""
        for seed in seeds:
            budget: Budget | None = None
            for arm in dict.fromkeys(("evolve", *arms)):  # the first decides about the others' updates
                print(f"▸ {self.name}, seed {seed}: {arm}", file=sys.stderr, flush=True)
                self._finished(arm, seed, budget)
                budget = budget or Budget.of(self.world, self._folder(arm, seed) / "run")
                self.report()

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
        return self.folder / f"seed-{seed}" / arm

    def _finished(self, arm: str, seed: int, budget: Budget | None) -> None:
        folder = self._folder(arm, seed)
        if (folder / "result.json").exists():
            return
        config = arm_config(arm, self.world, seed, budget, folder / "run", **self._data(seed))
        with MembersProgress(None if config.population.halving else config.population.generations) as progress:
            found = evolve(config, notify=lambda line: print(line, file=sys.stderr, flush=True), watch=progress)
        tasks = {"tasks": self.world.test_tasks, "split": "unseen", "seed": seed}
        bough.evaluate(
            found.weights, self.world.environment, output=folder / "evaluation", **tasks, **self.world.play
        )  # fmt: skip
        facts = {"arm": arm, "seed": seed, "updates": config.population.steps, "report": found.report}
        write_json(folder / "result.json", facts)

    def _data(self, seed: int) -> dict[str, Any]:
        """What all arms of a seed learn from or start from: demonstrations, or an adapter trained on them."""
        folder, world = self.folder / f"seed-{seed}" / "start", self.world
        file, trained = folder / "demonstrations" / "trajectories.jsonl", folder / "sft"
        if not (folder / "demonstrations" / "report.json").exists():
            play = {key: value for key, value in world.play.items() if key != "max_new_tokens"}
            settings = {"tasks": world.demonstrations, "seed": 1000 + seed, **play}
            bough.collect("expert", world.environment, output=file.parent, **settings)
        if world.start is None:
            return {"model": world.model, "train_file": file}
        if not (trained / "report.json").exists():
            again = (trained / "config.yaml").exists()
            bough.sft(world.model, file, output_dir=trained, seed=seed, resume=again, **world.start)
        return {"model": str(trained / "final")}


@dataclass(frozen=True)
class Budget:
    """What the evolve arm has used: all its tokens, those of one update, and those of measuring one member."""

    tokens: float
    update: float
    measure: float

    @classmethod
    def of(cls, world: World, run: Path) -> Budget:
        tokens = json.loads((run / "report.json").read_text())["tokens_computed"]
        played = (run / "rollouts").glob("generation-?????/*/trajectories.jsonl")
        sampled = sum(one.info.get("completion_tokens", 0) for file in played for one in bough.read(file))
        measured = world.members * world.generations
        return cls(tokens, (tokens - sampled) / (measured * world.steps), sampled / measured)

    def steps(self, world: World, arm: str) -> int:
        """The updates of a member, in the first generation, with which an arm uses up the budget."""
        rounds = list(_rounds(world, arm))
        left = self.tokens - self.measure * sum(members for members, _ in rounds)
        return max(1, round(left / (self.update * sum(members * share for members, share in rounds))))


def _rounds(world: World, arm: str) -> Iterator[tuple[int, int]]:
    """The generations of an arm: how many members, and how many times the first one's updates each makes."""
    if arm != "halving":
        yield (1 if arm == "fixed" else world.members), 1
        return
    members, share = world.members, 1
    while True:
        yield members, share
        if members <= 2:
            return
        members, share = members // 2, 2 * share


def arm_config(arm: str, world: World, seed: int, budget: Budget | None, run: Path, **data: Any) -> EvolveConfig:
    """The settings of an arm as those of `bough evolve`; `budget` is None for the evolve arm alone."""
    settings: dict[str, Any] = {
        **data, **world.play, **world.more, "method": world.method, "environment": world.environment, "split": "train",
        "eval_tasks": world.eval_tasks, "set": dict(world.set), "mutate": dict(world.mutate),
        "population_size": world.members, "output_dir": run, "seed": seed, "resume": (run / "config.yaml").exists(),
    }  # fmt: skip
    if arm == "evolve":
        return EvolveConfig(**settings, generations=world.generations, steps=world.steps)
    assert budget is not None
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
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--table-only", action="store_true", help="write the table of what has finished; run nothing")
    sizes = ("members", "generations", "steps", "eval_tasks", "test_tasks", "demonstrations")
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
    study = Study(options.world, world, options.folder / options.world)
    if not options.table_only:
        study.run(options.seeds, options.arms)
    print(study.report())


if __name__ == "__main__":
    main()
