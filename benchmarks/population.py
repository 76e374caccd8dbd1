"""One update of all members of a population, together in common rows against one member after the other.

    python benchmarks/population.py                                             # a tiny model on a CPU
    python benchmarks/population.py --model qwen3-0.6b --copies                 # on a GPU
    python benchmarks/population.py --model qwen3-4b --checkpointing --copies

Every member has its own episode, LoRA on all linear layers, AdamW and clipping. "One after the other" is
the same base with the same adapters, an update of each member by itself: a sweep that keeps its
base. With `--copies`, each member also has a base model of its own in memory, as in AgileRL, and members are
updated one after the other; only the first method is measured so. With `grpo`, members also play a group of
attempts each before the update, all in one engine or one member after the other.
Before the clock starts, both ways compute the loss and gradient norm of the first member. An interrupt prints what
has been measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from episodes import Lengths, Source
from measure import Gauge, Peak, failure_in, machine, release, seconds_of, table
from population_online import Players

import models
from bough.config.training import TrainingConfig
from bough.methods.base import Example, Method
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.online.grpo import OnlineGRPO
from bough.policy.adapters import Lora
from bough.policy.policy import BUDGET, Policy
from bough.policy.population import Population
from bough.training.population import PopulationTrainer
from bough.training.population_step import PopulationStep, Work
from bough.training.token_budget import FROZEN, Shape, budget_for

FILE = Path("none.jsonl")
METHODS = ("sft", "dpo", "grpo")
COLUMNS = ("members", "together, s", "one after the other, s", "× one member", "peak GiB", "one by one GiB", "")
Batches = Mapping[str, Sequence[Example]]


def method_of(name: str) -> tuple[Method[Any], TrainingConfig]:
    if name == "sft":
        config = SFTConfig(train_file=FILE, learning_rate=1e-6)
        return SFT(config), config
    if name == "dpo":
        preference = DPOConfig(train_file=FILE, learning_rate=1e-6)
        return DPO(preference), preference
    online = GRPOConfig(train_file=FILE, learning_rate=1e-6)
    return OnlineGRPO(online), online


def examples_of(method: str, source: Source, options: argparse.Namespace) -> list[Example]:
    """What one member learns from in one update."""
    episodes = [source.episode(options.rounds, Lengths(start=options.start)) for _ in range(options.episodes)]
    if method == "sft":
        calls = [episode.calls() for episode in episodes]
        return [Demonstration(calls=own, weights=(1.0,) * len(own)) for own in calls]
    return [Preference(calls=list(pair), num_chosen=1) for episode in episodes for pair in episode.pairs()]


def population_of(model: Any, count: int, options: argparse.Namespace, *, probe: bool = True) -> Population:
    autocast = torch.bfloat16 if torch.cuda.is_available() else None
    population = Population(Policy(model, autocast=autocast, probe=probe))
    for number in range(count):
        population.add(f"member-{number}", Lora(r=options.rank, alpha=2 * options.rank))
    models.fill_adapter(population.policy.model)
    population.policy.train()
    return population


def trainer_of(population: Population, method: str, names: Sequence[str], budget: int) -> PopulationTrainer:
    trainer = PopulationTrainer(population, budget=budget)
    for name in names:
        trainer.add(name, *method_of(method), num_steps=1000)
    return trainer


def budget_of(options: argparse.Namespace) -> int:
    """Tokens in a row: what is asked for, else what a run on this GPU would take."""
    if options.budget or not torch.cuda.is_available():
        return options.budget or BUDGET
    with torch.device("meta"):
        shape = Shape.of(models.outline(options.model))
    free = torch.cuda.mem_get_info()[0]
    checkpointing = {"gradient_checkpointing": options.checkpointing}
    return budget_for(shape, free, lora_r=options.rank * max(options.members), weight_bytes=FROZEN, **checkpointing)


def gauge(trainer: PopulationTrainer, examples: Batches, name: str) -> Gauge:
    """Loss and gradient norm of a member in a step of all those named, before any update."""
    found = step_of(trainer, examples).run(backward=True)
    gradients = [p.grad for p in trainer.population.members[name].parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    for training in trainer.training.values():
        training.updater.optimizer.zero_grad()
    return Gauge(found[name].loss, norm)


def step_of(trainer: PopulationTrainer, examples: Batches) -> PopulationStep:
    work = {name: Work(trainer.training[name].method, own) for name, own in examples.items()}
    return PopulationStep(trainer.population, work, budget=trainer.budget)


def compare(
    population: Population, method: str, count: int, options: argparse.Namespace, single: list[float]
) -> list[object]:
    """A line of the table. `single` receives the seconds of one member alone, from the first line."""
    names = list(population.members)[:count]
    trainer = trainer_of(population, method, names, options.budget)
    lengths, players = Lengths(start=options.start), None
    batches: Callable[[Sequence[str]], Batches]
    if method == "grpo":
        players = Players(population, names, group=options.group, rounds=options.rounds, lengths=lengths)
        batches = players.batches
    else:
        source = Source(population.policy.base.config.vocab_size)
        given = {name: examples_of(method, source, options) for name in names}
        batches = lambda some: {name: given[name] for name in some}  # noqa: E731
    try:
        examples = batches(names)
        same = gauge(trainer, examples, names[0]).against(gauge(trainer, {names[0]: examples[names[0]]}, names[0]))
        print(f"({method}, {count} members, the first member together and alone: {same})", flush=True)

        def one_by_one() -> None:
            for name in names:
                trainer.update(batches([name]))

        with Peak() as together_peak:
            together = seconds_of(
                lambda: trainer.update(batches(names)), warm_up=options.warm_up, times=options.steps
            )  # fmt: skip
        with Peak() as apart_peak:
            apart = seconds_of(one_by_one, warm_up=options.warm_up * (count == 1), times=options.passes)
    finally:
        if players is not None:
            players.close()
    if not single:
        single.append(apart / count)
    rows = step_of(trainer, examples)
    tokens = sum(row.tokens.size for step in rows.steps.values() for row in step.rows)
    layout = f"{tokens:,} tokens in {len(rows.places)} row{'s'[: len(rows.places) > 1]}"
    numbers = [f"{together:.3f}", f"{apart:.3f}", f"{together / single[0]:.1f}"]
    return [count, *numbers, f"{together_peak.gib:.1f}", f"{apart_peak.gib:.1f}", layout]


def copies(method: str, count: int, options: argparse.Namespace) -> str:
    """A base model for each member, members updated one after the other: seconds and memory."""
    with Peak() as peak:
        base = models.build(options.model, checkpointing=options.checkpointing)
        made = [population_of(deepcopy(base), 1, options, probe=False) for _ in range(count)]
        trainers = [trainer_of(one, method, ["member-0"], options.budget) for one in made]
        source = Source(base.config.vocab_size)
        examples = [{"member-0": examples_of(method, source, options)} for _ in trainers]

        def one_by_one() -> None:
            for trainer, own in zip(trainers, examples, strict=True):
                trainer.update(own)

        seconds = seconds_of(one_by_one, warm_up=1, times=options.passes)
    return f"{method}, a base for each of {count} members: {seconds:.3f} s, peak {peak.gib:.1f} GiB"


def memory(population: Population) -> str:
    """What is held in memory: one base, and a member's adapter with its moments."""
    member, count = population.members["member-0"].num_bytes, len(population.members)
    every = sum(p.numel() * p.element_size() for p in population.policy.parameters())
    base, each = (every - count * member) / 2**30, 3 * member / 2**20
    shared, apart = base + count * each / 1024, count * (base + each / 1024)
    return (
        f"The base takes {base:.2f} GiB, a member with its two moments {each:.1f} MiB: "
        f"{count} members {shared:.2f} GiB, with a base for each member {apart:.2f} GiB (without activations)."
    )


def title_of(method: str, options: argparse.Namespace) -> str:
    work = f"{options.episodes} × {options.rounds} rounds per member"
    if method == "grpo":
        work = f"{options.group} attempts × {options.rounds} rounds per member, sampled and learnt from"
    notes = f", rank {options.rank}{', gradient checkpointing' * options.checkpointing}"
    return f"## {options.model}, {method}: {work}{notes}"


def measure(options: argparse.Namespace, write: Callable[[str], None]) -> None:
    """Everything that is asked for; the adapters of all members are in memory throughout."""
    model = models.build(options.model, checkpointing=options.checkpointing)
    population = population_of(model, max(options.members), options)
    write(f"{machine()}; rows of at most {options.budget:,} tokens.\n\n{memory(population)}")
    for method in options.method:
        single: list[float] = []
        rows: list[list[object]] = []
        try:
            for count in options.members:
                failed: list[str] = []
                with failure_in(failed):
                    rows.append(compare(population, method, count, options, single))
                rows += [[count, "", "", "", "", "", reason] for reason in failed]
        finally:
            write(f"{title_of(method, options)}\n\n{table(COLUMNS, rows)}")
    del population, model
    for count in options.members if options.copies else ():
        failed = []
        with failure_in(failed):
            write(copies(options.method[0], count, options))
        if failed:
            write(f"A base for each of {count} members: {failed[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--copies", action="store_true", help="also measure a base model for each member")
    parser.add_argument("--rounds", type=int, default=10, help="of an episode")
    parser.add_argument("--episodes", type=int, default=1, help="of each member in one update of SFT or DPO")
    parser.add_argument("--group", type=int, default=4, help="attempts of each member in one update of GRPO")
    parser.add_argument("--start", type=int, default=442, help="tokens of an episode's start")
    parser.add_argument("--budget", type=int, help="tokens in a row (default: as a run would choose)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--warm-up", type=int, default=1, help="updates that are not counted")
    parser.add_argument("--steps", type=int, default=3, help="updates that are counted")
    parser.add_argument("--passes", type=int, default=1, help="counted passes over the members one after the other")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    options.budget = budget_of(options)  # once, while all memory is free

    def write(text: str) -> None:
        print(f"{text}\n", flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n\n")

    try:
        measure(options, write)
    except KeyboardInterrupt:
        write("Interrupted.")
        raise SystemExit(130) from None
    finally:
        release()


if __name__ == "__main__":
    main()
