"""How near training comes to what the machine can do: FLOPs of the trees over the time they took, as a share of
the rate of one large matrix product.

    python benchmarks/limit.py --model qwen3-4b --work sft dpo --tuning full lora [--variants eager compiled]

What counts as work is in work.py; recomputation is not. Full fine-tuning has the reference's
log-probabilities on file, as Bough computes them before training; with LoRA they are
computed in the step. `compiled` is Bough's --compile.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from dpo import objective, preferences, vocabulary
from episodes import Lengths, Source
from measure import Peak, failure_in, machine, matmul_rate, seconds_of, table
from ours import Ours, policy_of
from work import Sizes

import models
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.reference import Reference
from bough.training.method import Example


def examples_of(work: str, options: argparse.Namespace) -> list[Example]:
    """As many episodes as fill some rows."""
    source, examples = Source(vocabulary(options.model)), []
    for _ in range(options.rows * max(1, options.budget // (442 + (104 if work == "dpo" else 84) * options.rounds))):
        episode = source.episode(options.rounds, Lengths())
        if work == "dpo":
            examples += preferences(episode)
        else:
            calls = episode.calls()
            examples.append(Demonstration(calls=calls, weights=(1.0,) * len(calls)))
    return examples


def measure(work: str, tuning: str, variant: str, options: argparse.Namespace, rate: float) -> list[object]:
    examples = examples_of(work, options)
    with Peak() as peak:
        seconds, flops, tokens = _measure(work, tuning, variant, examples, options)
    reached = flops / seconds
    return [
        work,
        tuning,
        variant,
        tokens,
        f"{flops / 1e12:.4g}",
        f"{flops / rate:.3g} s",
        f"{seconds:.3g} s",
        f"{reached / 1e12:.3g}",
        f"**{reached / rate:.0%}**",
        f"{peak.gib:.0f} GiB",
    ]


def _measure(
    work: str, tuning: str, variant: str, examples: list[Example], options: argparse.Namespace
) -> tuple[float, int, str]:
    lora = Lora(options.rank, options.alpha) if tuning == "lora" else None
    compiled = variant == "compiled"
    policy = policy_of(options.model, lora=lora, checkpointing=options.checkpointing, compile=compiled)
    known = None
    if work == "dpo" and lora is None:
        known = Reference(policy)
        with tempfile.TemporaryDirectory() as folder:
            known.compute([call for e in examples for call in e.calls], options.budget, Path(folder), "the start")
    ours = Ours(
        policy, objective() if work == "dpo" else SFT(SFTConfig(train_file="unused")), options.budget, known=known
    )
    seconds = seconds_of(lambda: ours.step(examples), warm_up=options.warm_up, times=options.steps)
    rows = ours.laid_out(examples).rows
    flops = Sizes.of(policy.model).training(rows, reference=work == "dpo" and known is None)
    return seconds, flops, f"{sum(len(row.tree) for row in rows):,} in {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    parser.add_argument("--work", choices=["sft", "dpo"], nargs="+", default=["sft", "dpo"])
    parser.add_argument("--tuning", choices=["full", "lora"], nargs="+", default=["full", "lora"])
    parser.add_argument("--variants", choices=["eager", "compiled"], nargs="+", default=["eager"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=4, help="rows of tokens in one optimizer step")
    parser.add_argument("--budget", type=int, default=8192, help="tokens in a row")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--alpha", type=int, default=128)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    rate = matmul_rate()
    kept = "checkpointing" if options.checkpointing else "all activations kept"
    print(f"\n### The limit: {options.model}, {options.rounds} rounds, rows of {options.budget:,} tokens, {kept}")
    print(f"\n{machine()}\n\nA large matrix product runs at {rate / 1e12:.4g} TFLOP/s.\n")
    columns = ["work", "tuning", "variant", "tokens in rows", "TFLOP a step", "limit", "took", "TFLOP/s", "of the rate"]
    columns += ["peak memory"]
    rows: list[list[object]] = []
    for work in options.work:
        for tuning in options.tuning:
            for variant in options.variants:
                with failure_in(problems := []):
                    rows.append(measure(work, tuning, variant, options, rate))
                if problems:
                    rows.append([work, tuning, variant, problems[0], *[""] * 6])
                print(rows[-1], flush=True)
    print("\n" + table(columns, rows) + "\n", flush=True)


if __name__ == "__main__":
    main()
