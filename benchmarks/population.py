"""One update of all members of a population, together in common rows against one member after the other.

    python benchmarks/population.py                                        # a tiny model on a CPU
    python benchmarks/population.py --model qwen3-0.6b --method sft dpo    # on a GPU
    python benchmarks/population.py --model qwen3-4b --method sft dpo --checkpointing

Every member has its own episode, LoRA on all linear layers, AdamW and clipping. "One by one" is
the same base with the same adapters, an update of each member by itself: a sweep that keeps its
base. The memory with "a base for each member" is what as many single runs would hold. Before the
clock starts, both ways compute the loss and gradient norm of the first member.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from episodes import Lengths, Source
from measure import Gauge, Peak, failure_in, machine, release, seconds_of, table

import models
from bough.config.training import TrainingConfig
from bough.methods.base import Example, Method
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.population import Population
from bough.training.population import PopulationTrainer
from bough.training.population_step import PopulationStep, Work

FILE = Path("none.jsonl")
COLUMNS = (
    "members",
    "together, s",
    "one after the other, s",
    "times a single member",
    "peak GiB",
    "one by one GiB",
    "",
)


def method_of(name: str) -> tuple[Method[Any], TrainingConfig]:
    if name == "sft":
        config = SFTConfig(train_file=FILE, learning_rate=1e-6)
        return SFT(config), config
    preference = DPOConfig(train_file=FILE, learning_rate=1e-6)
    return DPO(preference), preference


def examples_of(method: str, source: Source, options: argparse.Namespace) -> list[Example]:
    """What one member learns from in one update."""
    lengths = Lengths(start=options.start)
    episodes = [source.episode(options.rounds, lengths) for _ in range(options.episodes)]
    if method == "sft":
        calls = [episode.calls() for episode in episodes]
        return [Demonstration(calls=own, weights=(1.0,) * len(own)) for own in calls]
    return [Preference(calls=list(pair), num_chosen=1) for episode in episodes for pair in episode.pairs()]


def trainer_of(options: argparse.Namespace, method: str, count: int) -> PopulationTrainer:
    model = models.build(options.model, checkpointing=options.checkpointing)
    policy = Policy(model, autocast=torch.bfloat16 if torch.cuda.is_available() else None)
    population = Population(policy)
    trainer = PopulationTrainer(population, budget=options.budget)
    for number in range(count):
        name = f"member-{number}"
        population.add(name, Lora(r=options.rank, alpha=2 * options.rank))
        trainer.add(name, *method_of(method), num_steps=1000)
    models.fill_adapter(policy.model)
    policy.train()
    return trainer


def gauge(trainer: PopulationTrainer, examples: Mapping[str, Sequence[Example]], name: str) -> Gauge:
    """Loss and gradient norm of a member in a step of all those named, before any update."""
    work = {each: Work(trainer.training[each].method, own) for each, own in examples.items()}
    found = PopulationStep(trainer.population, work, budget=trainer.budget).run(backward=True)
    gradients = [p.grad for p in trainer.population.members[name].parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    for training in trainer.training.values():
        training.updater.optimizer.zero_grad()
    return Gauge(found[name].loss, norm)


def compare(options: argparse.Namespace, method: str, count: int, single: list[float]) -> list[object]:
    """A line of the table. `single` receives the seconds of one member alone, from the first line."""
    trainer = trainer_of(options, method, count)
    source = Source(trainer.population.policy.base.config.vocab_size)
    examples = {name: examples_of(method, source, options) for name in trainer.population.members}
    first = next(iter(examples))
    same = gauge(trainer, examples, first).against(gauge(trainer, {first: examples[first]}, first))
    print(f"({method}, {count} members, the first member together and alone: {same})", flush=True)

    def one_by_one() -> None:
        for name, own in examples.items():
            trainer.update({name: own})

    timing = {"warm_up": options.warm_up, "times": options.steps}
    with Peak() as together_peak:
        together = seconds_of(lambda: trainer.update(examples), **timing)
    with Peak() as apart_peak:
        apart = seconds_of(one_by_one, **timing)
    if not single:
        single.append(apart / count)
    rows = PopulationStep(
        trainer.population,
        {name: Work(trainer.training[name].method, own) for name, own in examples.items()},
        budget=options.budget,
    )
    tokens = sum(row.tokens.size for step in rows.steps.values() for row in step.rows)
    layout = f"{tokens:,} tokens in {len(rows.places)} row{'s'[: len(rows.places) > 1]}"
    numbers = [f"{together:.3f}", f"{apart:.3f}", f"{together / single[0]:.1f}"]
    return [count, *numbers, f"{together_peak.gib:.1f}", f"{apart_peak.gib:.1f}", layout]


def memory(options: argparse.Namespace) -> str:
    """What is held in memory: one base, and a member's adapter with its moments."""
    trainer = trainer_of(options, "sft", 1)
    member = trainer.population.members["member-0"].num_bytes
    every = sum(p.numel() * p.element_size() for p in trainer.population.policy.parameters())
    base = (every - member) / 2**30
    each = 3 * member / 2**20
    most = max(options.members)
    shared, copies = base + most * each / 1024, most * (base + each / 1024)
    return (
        f"The base takes {base:.2f} GiB, a member with its two moments {each:.1f} MiB: "
        f"{most} members {shared:.2f} GiB, with a base for each member {copies:.2f} GiB (without activations)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    parser.add_argument("--method", choices=["sft", "dpo"], nargs="+", default=["sft", "dpo"])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=10, help="of an episode")
    parser.add_argument("--episodes", type=int, default=1, help="of each member in one update")
    parser.add_argument("--start", type=int, default=442, help="tokens of an episode's start")
    parser.add_argument("--budget", type=int, default=8192, help="tokens in a row")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--warm-up", type=int, default=2, help="updates that are not counted")
    parser.add_argument("--steps", type=int, default=5, help="updates that are counted")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    sections = [f"{machine()}.\n\n{memory(options)}"]
    for method in options.method:
        single: list[float] = []
        rows: list[list[object]] = []
        for count in options.members:
            failed: list[str] = []
            with failure_in(failed):
                rows.append(compare(options, method, count, single))
            rows += [[count, "", "", "", "", "", reason] for reason in failed]
            release()
        title = f"## {options.model}, {method}: {options.episodes} × {options.rounds} rounds per member"
        title += f", rank {options.rank}{', gradient checkpointing' * options.checkpointing}"
        sections.append(f"{title}\n\n{table(COLUMNS, rows)}")
        print(sections[-1], flush=True)
    text = "\n\n".join(sections) + "\n"
    print(sections[0], flush=True)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
