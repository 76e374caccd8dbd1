"""Multi-turn SFT: Bough against TRL's SFTTrainer with packing and a loss on the answers only.

    python benchmarks/sft.py --model qwen3-0.6b --tuning full lora [--think 150]

Where the chat template only appends, an episode is one row for TRL: it computes as few
tokens as we do. Where the template drops old thoughts from the history (--think, as Qwen3's
does) no single row is what the model saw, and TRL has to train each call by itself.
TRL runs in each of the ways given: how it attends, and to which length it packs its rows;
0 is without packing, one sample a batch, which spares SDPA its mask. One optimizer step is
all the episodes, half of them of each number of rounds.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import peer
import torch
from dpo import vocabulary
from episodes import Episode, Lengths, Source
from measure import Gauge, Peak, failure_in, machine, seconds_of, table
from ours import Ours, policy_of

import models
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora


class Result(NamedTuple):
    """How fast, in how much memory, and what came out."""

    name: str
    episodes_per_s: float
    peak_gib: float
    gauge: Gauge
    note: str


def run_ours(options: argparse.Namespace, episodes: list[Episode], tuning: str) -> Result:
    examples = [
        Demonstration(calls=calls, weights=(1.0,) * len(calls)) for calls in (episode.calls() for episode in episodes)
    ]
    lora = Lora(options.rank, options.alpha) if tuning == "lora" else None
    with Peak() as peak:
        gauge, seconds, note = _measure_ours(options, examples, lora)
    return Result("Bough", len(episodes) / seconds, peak.gib, gauge, note)


def _measure_ours(
    options: argparse.Namespace, examples: list[Demonstration], lora: Lora | None
) -> tuple[Gauge, float, str]:
    ours = Ours(
        policy_of(options.model, lora=lora, checkpointing=options.checkpointing, compile=options.compile),
        SFT(SFTConfig(train_file="unused")),
        options.budget,
    )
    gauge = ours.gauge(examples)
    seconds = seconds_of(lambda: ours.step(examples), warm_up=options.warm_up, times=options.steps)
    return gauge, seconds, ours.layout(examples, seconds, reference=False)


def samples_of(episodes: list[Episode], *, each_call: bool) -> list[dict[str, list[int]]]:
    """What TRL trains on, in its columns."""
    if not each_call:
        rows = [episode.row() for episode in episodes]
        return [{"input_ids": ids, "assistant_masks": [int(a) for a in answered]} for ids, answered in rows]
    calls = [call for episode in episodes for call in episode.calls()]
    return [
        {
            "input_ids": call.prompt_ids + call.completion_ids,
            "assistant_masks": [0] * len(call.prompt_ids) + [1] * len(call.completion_ids),
        }
        for call in calls
    ]


def run_trl(options: argparse.Namespace, episodes: list[Episode], tuning: str, length: int, attention: str) -> Result:
    with Peak() as peak:
        num_rows, watch = _watch_trl(options, episodes, tuning, length, attention)
    seconds = watch.seconds(skip=num_rows) / options.trl_steps
    tokens = sum(len(sample["input_ids"]) for sample in samples_of(episodes, each_call=options.think > 0))
    note = f"{tokens:,} tokens in {num_rows} rows"
    return Result(_name(attention, length), len(episodes) / seconds, peak.gib, watch.gauges[0], note)


def _name(attention: str, length: int) -> str:
    return f"TRL, {attention}, " + (f"packed to {length}" if length else "no packing")


def _watch_trl(
    options: argparse.Namespace, episodes: list[Episode], tuning: str, length: int, attention: str
) -> tuple[int, peer.Watch]:
    """All rows that its packing makes are one optimizer step; how many, and how it went."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer, pack_dataset

    data = Dataset.from_list(samples_of(episodes, each_call=options.think > 0))
    num_rows = len(pack_dataset(data.select_columns(["input_ids"]), length, "bfd")) if length else len(data)
    model = models.build(options.model, full=tuning == "full")
    model.set_attn_implementation(attention)
    common = peer.settings(1, num_rows, 1 + options.trl_steps, checkpointing=options.checkpointing)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**common, packing=length > 0, max_length=length or None),
        train_dataset=data,
        processing_class=peer.tokenizer(),
        peft_config=peer.lora_config(options.rank, options.alpha) if tuning == "lora" else None,
    )
    assert len(trainer.train_dataset) == num_rows
    models.fill_adapter(trainer.model)
    return num_rows, peer.run(trainer)


def compare(options: argparse.Namespace, tuning: str) -> None:
    source = Source(vocabulary(options.model))
    lengths = Lengths(think=options.think)
    episodes = [source.episode(options.rounds[i % len(options.rounds)], lengths) for i in range(options.episodes)]
    mine = run_ours(options, episodes, tuning)
    theirs: list[Result] = []
    for attention, length in options.trl:
        with failure_in(problems := []):
            theirs.append(run_trl(options, episodes, tuning, length, attention))
        done = problems[0] if problems else f"{theirs[-1].episodes_per_s:.3g} episodes/s"
        print(f"{_name(attention, length)}: {done}", flush=True)

    template = (
        f"thoughts of {options.think} tokens dropped from the history" if options.think else "append-only template"
    )
    rounds = " and ".join(map(str, options.rounds))
    kind = "full fine-tuning" if tuning == "full" else f"LoRA r={options.rank}"
    print(
        f"\n### SFT: {options.model}, {kind}, {len(episodes)} episodes of {rounds} rounds, {template}\n\n{machine()}\n"
    )
    rows = [
        [r.name, f"{r.episodes_per_s:.3g}", f"{mine.episodes_per_s / r.episodes_per_s:.2f}×", f"{r.peak_gib:.1f} GiB",
         f"{r.gauge.loss:.6f}", f"{r.gauge.gradient_norm:.5f}", r.note]
        for r in (mine, *theirs)
    ]  # fmt: skip
    print(table(["", "episodes/s", "Bough is faster by", "peak memory", "loss", "gradient norm", ""], rows))
    for result in theirs:
        print(f"\nBough and {result.name}: {mine.gauge.against(result.gauge)}.")
    packed = [result for result in theirs if "packed" in result.name]
    for what, among in (("TRL's best with packing", packed), ("TRL's best", theirs)):
        if among:
            best = max(result.episodes_per_s for result in among)
            print(f"\n**{mine.episodes_per_s / best:.2f}× {what}**")
    print(flush=True)


def _way(text: str) -> tuple[str, int]:
    attention, length = text.split(":")
    return attention, int(length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    parser.add_argument("--tuning", choices=["full", "lora"], nargs="+", default=["full", "lora"])
    parser.add_argument("--rounds", type=int, nargs="+", default=[15, 30])
    parser.add_argument("--episodes", type=int, default=12, help="in one optimizer step")
    parser.add_argument("--think", type=int, default=0, help="mean tokens of a thought that the history drops")
    parser.add_argument(
        "--trl", type=_way, nargs="+", default=[("sdpa", 0), ("sdpa", 4096), ("sdpa", 8192)], metavar="ATTENTION:LENGTH"
    )
    parser.add_argument("--trl-steps", type=int, default=2, help="steps of TRL's that are counted")
    parser.add_argument("--budget", type=int, default=8192, help="tokens in a row of ours")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--alpha", type=int, default=128)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, for both")
    parser.add_argument("--compile", action="store_true", help="our layers under torch.compile")
    parser.add_argument("--warm-up", type=int, default=1, help="steps of ours that are not counted")
    parser.add_argument("--steps", type=int, default=5, help="steps of ours that are counted")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for tuning in options.tuning:
        compare(options, tuning)


if __name__ == "__main__":
    main()
