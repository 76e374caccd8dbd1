"""Whole-episode DPO: a success against a failure that began alike. Bough against TRL's DPOTrainer.

    python benchmarks/episode_dpo.py --model qwen3-0.6b [--successes 2 --failures 2]

TRL takes everything after the common start for the completion, so it trains on the
observations: on what the environment said, as if the model had. The third contender is TRL
with its mask corrected by hand; it is there to show that then both compute the same.
Of several attempts at a task each success is paired with each failure.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any, NamedTuple

import peer
import torch
from dpo import BETA, add_options, objective, vocabulary
from episodes import Episode, Lengths, Source
from measure import Gauge, Peak, failure_in, machine, seconds_of, table
from ours import Ours, policy_of

import models
from bough.methods.dpo import Preference
from bough.policy.adapters import Lora

Pairs = list[tuple[Episode, Episode]]


class Result(NamedTuple):
    """How fast, in how much memory, what came out, and how many tokens a step trained."""

    name: str
    pairs_per_s: float
    peak_gib: float
    gauge: Gauge
    trained: int
    note: str


def pairs_of(source: Source, options: argparse.Namespace) -> Pairs:
    """The pairs of some tasks, every success with every failure."""
    pairs: Pairs = []
    for _ in range(options.tasks):
        attempts = source.attempts(options.successes + options.failures, options.rounds[0], Lengths())
        pairs += itertools.product(attempts[: options.successes], attempts[options.successes :])
    return pairs


def run_ours(options: argparse.Namespace, pairs: Pairs) -> Result:
    calls = {id(episode): episode.calls() for pair in pairs for episode in pair}
    examples = [
        Preference(calls=calls[id(won)] + calls[id(lost)], num_chosen=len(calls[id(won)])) for won, lost in pairs
    ]
    with Peak() as peak:
        gauge, seconds, note = _measure_ours(options, examples)
    trained = sum(example.num_trained for example in examples)
    return Result("Bough", len(pairs) / seconds, peak.gib, gauge, trained, note)


def _measure_ours(options: argparse.Namespace, examples: list[Preference]) -> tuple[Gauge, float, str]:
    policy = policy_of(
        options.model,
        lora=Lora(options.rank, options.alpha),
        checkpointing=options.checkpointing,
        compile=options.compile,
    )
    ours = Ours(policy, objective(), options.budget)
    gauge = ours.gauge(examples)
    seconds = seconds_of(lambda: ours.step(examples), warm_up=options.warm_up, times=options.steps)
    return gauge, seconds, ours.layout(examples, seconds, reference=True)


def run_trl(options: argparse.Namespace, pairs: Pairs, batch: int, *, corrected: bool) -> Result:
    steps = 1 + (0 if corrected else 1)
    with Peak() as peak:
        watch = peer.run(_trainer(options, pairs, batch, steps, corrected))
    num_batches = len(pairs) // batch
    seconds = float("nan") if corrected else watch.seconds(skip=num_batches)
    rows = [_columns(*pair) for pair in pairs]
    masks = [row[f"{side}_{'mask' if corrected else 'ids'}"] for row in rows for side in ("chosen", "rejected")]
    trained = sum(sum(mask) if corrected else len(mask) for mask in masks)
    computed = sum(len(row["prompt_ids"]) * 2 + len(row["chosen_ids"] + row["rejected_ids"]) for row in rows)
    name = "TRL, mask corrected by hand" if corrected else f"TRL, batch {batch}"
    note = f"{computed:,} tokens without padding"
    return Result(name, len(pairs) / seconds, peak.gib, watch.gauges[0], trained, note)


def _columns(won: Episode, lost: Episode) -> dict[str, Any]:
    columns: dict[str, Any] = {"prompt_ids": won.start}
    for side, episode in (("chosen", won), ("rejected", lost)):
        ids, answered = episode.row()
        columns[f"{side}_ids"] = ids[len(won.start) :]
        columns[f"{side}_mask"] = [int(a) for a in answered[len(won.start) :]]
    return columns


def _trainer(options: argparse.Namespace, pairs: Pairs, batch: int, steps: int, corrected: bool) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    class Tokenised(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    class Corrected(DataCollatorForPreference):
        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super().torch_call(examples)
            sides = [(e, e[f"{side}_mask"]) for side in ("chosen", "rejected") for e in examples]
            for row_L, (example, mask) in zip(batch["completion_mask"], sides, strict=True):
                start = len(example["prompt_ids"])
                row_L[start : start + len(mask)] = torch.tensor(mask)
            return batch

    common = peer.settings(batch, len(pairs) // batch, steps, checkpointing=options.checkpointing)
    trainer = Tokenised(
        model=models.build(options.model),
        args=DPOConfig(**common, beta=BETA, max_length=None, remove_unused_columns=not corrected),
        data_collator=Corrected(pad_token_id=0) if corrected else None,
        train_dataset=Dataset.from_list([_columns(*pair) for pair in pairs]),
        processing_class=peer.tokenizer(),
        peft_config=peer.lora_config(options.rank, options.alpha),
    )
    models.fill_adapter(trainer.model)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=[15], batches=[1, 2, 4])
    parser.add_argument("--tasks", type=int, default=4, help="in one optimizer step")
    parser.add_argument("--successes", type=int, default=1)
    parser.add_argument("--failures", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    pairs = pairs_of(Source(vocabulary(options.model)), options)
    batches = [batch for batch in options.trl_batches if len(pairs) % batch == 0]
    mine = run_ours(options, pairs)
    corrected = run_trl(options, pairs, batches[0], corrected=True)
    theirs: list[Result] = []
    for batch in batches:
        with failure_in(problems := []):
            theirs.append(run_trl(options, pairs, batch, corrected=False))
        done = problems[0] if problems else f"{theirs[-1].pairs_per_s:.3g} pairs/s"
        print(f"TRL, batch {batch}: {done}", flush=True)
    if not theirs:
        raise SystemExit("Error: TRL ran with none of the batch sizes, for the reasons above")
    best = max(theirs, key=lambda result: result.pairs_per_s)

    attempts = f"{options.successes} successes and {options.failures} failures of {options.rounds[0]} rounds"
    print(f"\n### Whole-episode DPO: {options.model}, {options.tasks} tasks with {attempts}, LoRA r={options.rank}")
    print(f"\n{machine()}\n")
    rows = [
        [r.name, f"{r.pairs_per_s:.3g}", f"{mine.pairs_per_s / r.pairs_per_s:.2f}×", f"{r.peak_gib:.1f} GiB",
         f"{r.trained:,}", f"{r.gauge.loss:.6f}", f"{r.gauge.gradient_norm:.5f}", r.note]
        for r in (mine, *theirs)
    ]  # fmt: skip
    rows.append([corrected.name, *["not measured"] * 3, f"{corrected.trained:,}", f"{corrected.gauge.loss:.6f}",
                 f"{corrected.gauge.gradient_norm:.5f}", corrected.note])  # fmt: skip
    columns = ["", "pairs/s", "Bough is faster by", "peak memory", "trained tokens", "loss", "gradient norm", ""]
    print(table(columns, rows))
    print(f"\nBough and TRL with its mask corrected: {mine.gauge.against(corrected.gauge)}.")
    print(f"As it is, TRL trains {best.trained - mine.trained:,} tokens of observations.\n")
    print(f"**{mine.pairs_per_s / best.pairs_per_s:.2f}× TRL's best**\n", flush=True)


if __name__ == "__main__":
    main()
