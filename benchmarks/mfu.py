"""The share of the matmul rate that SFT reaches through the whole training loop, with default settings.

    python benchmarks/mfu.py [--model smollm2-135m qwen3-0.6b] [--tuning full lora] [--no-compile] [--no-cuda-graphs]
                             [--profile]

Random weights in real shapes, made-up household episodes. The clock runs from the end of one step to
the end of another, so packing, metrics and the optimizer count; the FLOPs (work.py) are those of the trees,
recomputation not counted. Token budget, compiling and recording are what a run over --episodes would choose by
itself, unless the flags say otherwise; only the first of its steps are computed.
With --profile, a few more steps say which kernels the time is spent in.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from dpo import vocabulary
from episodes import Lengths, Source
from measure import Peak, failure_in, machine, matmul_rate, now, table
from ours import policy_of
from work import Sizes

import models
from bough.config.run_folder import RunDir
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.training.loop import Trainer
from bough.training.plan import PlannedSource, Shape, Work, choose, fitting
from bough.training.step import Step

PROFILED = 3  # steps
# What a kernel does, by what its name contains; the first that fits.
KINDS = {
    "optimizer, sums of gradients": r"adam|lpnorm|multi_tensor",
    "attention": r"flex_attention|tem_fused.*attention|flash|fmha",
    "matrix products": r"gemm|nvjet|cutlass|cublas|xmma",
    "compiled, element by element": r"^triton_",
    "copies": r"memcpy|memset",
    "other, element by element": r"",
}


def demonstrations(model: str, count: int, rounds: int) -> list[Demonstration]:
    source = Source(vocabulary(model))
    calls = [source.episode(rounds, Lengths()).calls() for _ in range(count)]
    return [Demonstration(calls=each, weights=(1.0,) * len(each), cluster=str(i)) for i, each in enumerate(calls)]


def settled(config: SFTConfig, model: str, examples: list[Demonstration], options: argparse.Namespace) -> SFTConfig:
    """The settings with what a run decides by itself, for a model that is not on disk."""
    if torch.cuda.is_available():
        with torch.device("meta"):
            outline = models.outline(model)
        few, free = Work.of(PlannedSource(examples, config)), torch.cuda.mem_get_info()[0]
        steps = options.episodes // config.optimizer.batch_size
        chosen, said = choose(config, outline, free, Work(steps, steps * few.num_tokens / few.num_steps))
        print(*said, sep="\n", flush=True)
        config = config.model_copy(update={"machine": chosen})
        budget = chosen.token_budget or fitting(config, Shape.of(outline), free)
    else:
        budget = config.machine.tokens_per_pass
    return config.model_copy(update={"machine": config.machine.model_copy(update={"token_budget": budget})})


def measure(model: str, tuning: str, batch_size: int, options: argparse.Namespace, rate: float) -> list[object]:
    steps = options.warm_up + options.steps + (PROFILED if options.profile else 0)
    config = SFTConfig(
        train_file=Path("unused"), use_lora=tuning == "lora", batch_size=batch_size, max_steps=steps,
        compile=options.compile, cuda_graphs=options.cuda_graphs, token_budget=options.budget, save_steps=10**9,
    )  # fmt: skip
    examples = demonstrations(model, batch_size * min(steps, 8), options.rounds)
    config = settled(config, model, examples, options)
    chosen = config.machine
    lora = Lora(config.lora.r, config.lora.alpha) if config.lora.enabled else None
    with Peak() as peak:
        policy = policy_of(model, lora=lora, checkpointing=False, compile=bool(chosen.compile))
        seconds, flops, tokens = trained(policy, config, examples, options)
    reached = flops / seconds
    return [
        model, tuning, batch_size, *("yes" if on else "no" for on in (chosen.compile, chosen.cuda_graphs)),
        f"{chosen.token_budget:,}", f"{tokens / options.steps:,.0f}",
        f"{1e3 * seconds / options.steps:.0f} ms", f"{tokens / seconds:,.0f}",
        f"{reached / 1e12:.3g}", f"**{reached / rate:.0%}**", f"{peak.gib:.0f} GiB",
    ]  # fmt: skip


def trained(
    policy: Policy, config: SFTConfig, examples: list[Demonstration], options: argparse.Namespace
) -> tuple[float, int, int]:
    """Seconds, FLOPs and computed tokens of the steps after the warm-up."""
    times: list[float] = []
    method, source = SFT(config), PlannedSource(examples, config)
    last = options.warm_up + options.steps
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def report(_: dict[str, Any]) -> None:
        times.append(now())
        if options.profile and len(times) == last:
            profiler.start()
        if options.profile and len(times) == last + PROFILED:
            profiler.stop()

    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(folder)
        run.create(config)
        trainer = Trainer(policy, method, source, config, run, lambda path, _: path.mkdir(), report=report)
        trainer.train()
    taken = sorted(1e3 * (end - begin) for begin, end in pairwise(times[options.warm_up - 1 : last]))
    print(f"a step: {taken[0]:.1f} ms at least, {median(taken):.1f} in the middle, {taken[-1]:.1f} at most", flush=True)
    if options.profile:
        print(kernels(profiler), flush=True)
    flops = tokens = 0
    for step in range(options.warm_up, last):
        parts = [part for example in source.batch(step).examples for part in method.parts(example)]
        rows: Any = Step(policy, method, parts, budget=config.machine.tokens_per_pass).rows
        flops += Sizes.of(policy.model).training(rows, reference=False)
        tokens += sum(row.tokens.size for row in rows)
    return times[last - 1] - times[options.warm_up - 1], flops, tokens


def kernels(profiler: Any) -> str:
    """What the GPU spent a step's time on, by kind of kernel, and the longest by name."""
    found = [event for event in profiler.key_averages() if event.self_device_time_total]
    milliseconds, count = Counter[str](), Counter[str]()
    for event in found:
        kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, event.key, re.IGNORECASE))
        milliseconds[kind] += event.self_device_time_total / 1e3 / PROFILED
        count[kind] += event.count / PROFILED
    rows = [[kind, f"{count[kind]:.0f}", f"{took:.1f}"] for kind, took in milliseconds.most_common()]
    rows.append(["all", f"{count.total():.0f}", f"{milliseconds.total():.1f}"])
    longest = sorted(found, key=lambda event: -event.self_device_time_total)[:12]
    names = [
        f"{e.self_device_time_total / 1e3 / PROFILED:.2f} ms, {e.count // PROFILED} × {e.key[:90]}" for e in longest
    ]
    return "\n".join([table(["kernels", "per step", "ms per step"], rows), "", *names, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, nargs="+", default=["smollm2-135m", "qwen3-0.6b"])
    parser.add_argument("--tuning", choices=["full", "lora"], nargs="+", default=["full"])
    parser.add_argument(
        "--batch-size", type=int, nargs="+", default=[SFTConfig(train_file=Path("unused")).optimizer.batch_size, 32]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=int, help="tokens per forward pass, instead of the one that is chosen")
    parser.add_argument("--episodes", type=int, default=48_000, help="the run's: 16,000 in three epochs")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    parser.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction)
    parser.add_argument("--profile", action="store_true", help="say what the GPU spends the time on")
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    rate = matmul_rate()
    print(f"{machine()}\n\nmatmul rate: {rate / 1e12:.3g} TFLOP/s\n", flush=True)
    columns = ["model", "tuning", "batch", "compile", "graphs", "budget", "tokens a step", "a step", "tokens/s"]
    columns += ["TFLOP/s", "share", "peak"]
    rows = []
    for model in options.model:
        for tuning in options.tuning:
            for batch_size in options.batch_size:
                row: list[object] = [model, tuning, batch_size]
                failed: list[str] = []
                with failure_in(failed):
                    row = measure(model, tuning, batch_size, options, rate)
                rows.append(row + failed + [""] * (len(columns) - len(row) - len(failed)))
                print(table(columns, rows[-1:]), flush=True)
    print(f"\n{table(columns, rows)}")


if __name__ == "__main__":
    main()
