"""One update of all members of a population, together in common rows against one member after the other.

    python benchmarks/population.py                                             # a tiny model on a CPU
    python benchmarks/population.py --model qwen3-0.6b --limit-s 300            # on a GPU
    python benchmarks/population.py --model qwen3-4b --checkpointing --lines sft:16 dpo:16 copies:8
    python benchmarks/population.py --model qwen3-0.6b --lines grpo:1 grpo:8 grpo:16 --passes 0

A line of the table is METHOD:MEMBERS, measured and printed in the order given. Every member has its own episode,
LoRA on all linear layers, AdamW and clipping. "One after the other" is the same base with the same adapters, an
update of each member by itself: a sweep that keeps its base. With `--passes 0` that is measured in lines of one
member only. With `grpo`, members also play a group of attempts each before the update, all in one engine or one
member after the other. With `copies`, each member has a base model of its own in memory, as in AgileRL, and learns
by SFT.
Before the clock starts, both ways compute the loss and gradient norm of the first member. After `--limit-s` the
measurement that is under way is given up.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from episodes import Lengths, Source
from measure import Gauge, Peak, failure_in, machine, release, seconds_of, table
from population_online import Players
from population_profile import profiled

import models
from bough.config.training import TrainingConfig
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.grpo import GRPOConfig, OnlineGRPO
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import BUDGET, Policy
from bough.policy.population import Population
from bough.training.method import Example, Method
from bough.training.plan import FROZEN, Shape, budget_for
from bough.training.population import PopulationStep, PopulationTrainer, Work

FILE = Path("none.jsonl")
METHODS = ("sft", "dpo", "grpo", "copies")
LINES = ["sft:1", "sft:8", "sft:16", "dpo:16", "grpo:16", "copies:16", "dpo:8", "grpo:8", "copies:8"]
COLUMNS = (
    *("method", "members", "together, s", "one after the other, s", "× one member", "peak GiB", "one by one GiB", ""),
)
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
    members = max(count for _, count in options.lines)
    checkpointing = {"gradient_checkpointing": options.checkpointing}
    return budget_for(shape, free, lora_r=options.rank * members, weight_bytes=FROZEN, **checkpointing)


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


class Bench:
    """Measures lines on one model. The adapters of all members are in memory throughout, except for `copies`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._population: Population | None = None
        self._single: dict[str, float] = {}

    @property
    def population(self) -> Population:
        if self._population is None:
            options = self.options
            model = models.build(options.model, checkpointing=options.checkpointing)
            most = max(count for method, count in options.lines if method != "copies")
            self._population = population_of(model, most, options)
        return self._population

    def line(self, method: str, count: int) -> list[object]:
        """A line of the table: the method, the number of members, and what was measured."""
        if method == "copies":
            self._population = None
            return ["sft, a base for each", count, *copies(count, self.options)]
        return [method, count, *self._compared(method, count)]

    def _compared(self, method: str, count: int) -> list[object]:
        names = list(self.population.members)[:count]
        trainer = trainer_of(self.population, method, names, self.options.budget)
        batches, close = source_of(self.population, method, names, self.options)
        try:
            examples = batches(names)
            alone = {names[0]: examples[names[0]]}
            same = gauge(trainer, examples, names[0]).against(gauge(trainer, alone, names[0]))
            print(f"({method}, {count} members, the first member together and alone: {same})", flush=True)
            with Peak() as together_peak:
                together = seconds_of(lambda: trainer.update(batches(names)), warm_up=1, times=self.options.steps)
            apart: float | None = None
            with Peak() as apart_peak:
                if passes := self.options.passes or int(count == 1):
                    apart = seconds_of(partial(one_by_one, trainer, batches, names), warm_up=count == 1, times=passes)
            if self.options.profile:
                with failure_in([]):
                    print(f"({method}, {count} members: {profiled(lambda: trainer.update(examples))})", flush=True)
        finally:
            close()
        if apart is not None:
            self._single.setdefault(method, apart / count)
        single = self._single.get(method)
        numbers = [f"{together:.3f}", _three(apart), f"{together / single:.1f}" if single else ""]
        layout = layout_of(step_of(trainer, examples))
        return [*numbers, f"{together_peak.gib:.1f}", "" if apart is None else f"{apart_peak.gib:.1f}", layout]


def source_of(
    population: Population, method: str, names: Sequence[str], options: argparse.Namespace
) -> tuple[Callable[[Sequence[str]], Batches], Callable[[], None]]:
    """Where members get their examples from, and what closes it."""
    if method == "grpo":
        lengths = Lengths(start=options.start)
        players = Players(population, names, group=options.group, rounds=options.rounds, lengths=lengths)
        return players.batches, players.close
    source = Source(population.policy.base.config.vocab_size)
    given = {name: examples_of(method, source, options) for name in names}
    return lambda some: {name: given[name] for name in some}, lambda: None


def one_by_one(
    trainer: PopulationTrainer, batches: Callable[[Sequence[str]], Batches], names: Sequence[str]
) -> None:  # fmt: skip
    for name in names:
        trainer.update(batches([name]))


def _three(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"


def layout_of(step: PopulationStep) -> str:
    tokens = sum(row.tokens.size for own in step.steps.values() for row in own.rows)
    return f"{tokens:,} tokens in {len(step.places)} row{'s'[: len(step.places) > 1]}"


def copies(count: int, options: argparse.Namespace) -> list[object]:
    """SFT with a base model for each member, members updated one after the other."""
    release()
    with Peak() as peak:
        base = models.build(options.model, checkpointing=options.checkpointing)
        bases = [*(deepcopy(base) for _ in range(count - 1)), base]
        made = [population_of(one, 1, options, probe=False) for one in bases]
        trainers = [trainer_of(one, "sft", ["member-0"], options.budget) for one in made]
        source = Source(base.config.vocab_size)
        examples = [{"member-0": examples_of("sft", source, options)} for _ in trainers]

        def all_of_them() -> None:
            for trainer, own in zip(trainers, examples, strict=True):
                trainer.update(own)

        seconds = seconds_of(all_of_them, warm_up=1, times=max(1, options.passes))
    return ["", f"{seconds:.3f}", "", "", f"{peak.gib:.1f}", ""]


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


def title_of(options: argparse.Namespace) -> str:
    work = (
        f"SFT and DPO on {options.episodes} × {options.rounds} rounds of each member, "
        f"GRPO on {options.group} attempts × {options.rounds} rounds, sampled and learnt from"
    )
    notes = f"rank {options.rank}{', gradient checkpointing' * options.checkpointing}"
    return f"## {options.model}: {work}; {notes}; rows of at most {options.budget:,} tokens"


def measure(options: argparse.Namespace, write: Callable[[str], None]) -> None:
    """Everything that is asked for, each line written when it is measured."""
    bench = Bench(options)
    write(f"{title_of(options)}\n\n{machine()}\n")
    if any(method != "copies" for method, _ in options.lines):
        write(f"{memory(bench.population)}\n")
    write(table(COLUMNS, []))
    for method, count in options.lines:
        failed: list[str] = []
        with failure_in(failed):
            write(table_line(bench.line(method, count)))
        for reason in failed:
            write(table_line([method, count, *[""] * 5, reason]))


def table_line(values: Sequence[object]) -> str:
    return table((), [values]).splitlines()[-1]


def line_of(text: str) -> tuple[str, int]:
    method, _, count = text.partition(":")
    if method not in METHODS or not count.isdigit() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not METHOD:MEMBERS with one of {', '.join(METHODS)}")
    return method, int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    every = [line_of(line) for line in LINES]
    parser.add_argument("--lines", type=line_of, nargs="+", default=every, metavar="METHOD:MEMBERS")
    parser.add_argument("--limit-s", type=float, default=0.0, help="seconds after which to stop (default: none)")
    parser.add_argument("--profile", action="store_true", help="also say where the time of each line's update goes")
    parser.add_argument("--rounds", type=int, default=10, help="of an episode")
    parser.add_argument("--episodes", type=int, default=1, help="of each member in one update of SFT or DPO")
    parser.add_argument("--group", type=int, default=4, help="attempts of each member in one update of GRPO")
    parser.add_argument("--start", type=int, default=442, help="tokens of an episode's start")
    parser.add_argument("--budget", type=int, help="tokens in a row (default: as a run would choose)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--steps", type=int, default=3, help="updates that are counted")
    parser.add_argument(
        "--passes", type=int, default=1, help="counted passes one after the other; 0: of one member only"
    )
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    options.budget = budget_of(options)  # once, while all memory is free

    def write(text: str) -> None:
        print(text, flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    # The limit is as an interrupt: every line before is written already.
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, options.limit_s)
    try:
        measure(options, write)
    except KeyboardInterrupt:
        write("\nStopped before the end.")
        raise SystemExit(130) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        release()
    write("")


if __name__ == "__main__":
    main()
