"""Round-wise DPO: in each round of an episode two answers to the same history. Bough against TRL's DPOTrainer.

    python benchmarks/dpo.py --model smollm2 --rounds 15 30 --episodes 1 --subset 5   # on a CPU
    python benchmarks/dpo.py --model qwen3-4b --rounds 15 30 --checkpointing          # on a GPU

LoRA on all linear layers; the reference is the adapter switched off, computed in the step
by both. One TRL optimizer step is one episode; its pairs come in the order of their rounds,
so that those in a batch are of nearly one length, and its batch size is the fastest of
those given. Before the clock starts both compute loss and gradient norm of the same pairs.
With --subset TRL gets only some of the pairs, evenly spaced over the rounds.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import peer
import torch
from episodes import Episode, Lengths, Source
from measure import Gauge, Peak, failure_in, machine, seconds_of, table
from ours import Ours, policy_of

import models
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.policy.adapters import Lora

BETA = 0.1


class Result(NamedTuple):
    """How fast, in how much memory, and what came out for the pairs that both computed, by TRL's batch size."""

    name: str
    pairs_per_s: float
    peak_gib: float
    gauges: dict[int, Gauge]
    note: str = ""


def preferences(episode: Episode) -> list[Preference]:
    return [Preference(calls=[*pair], num_chosen=1) for pair in episode.pairs()]


def spaced(pairs: list[Preference], count: int | None) -> list[Preference]:
    """The middle pair of each of `count` equal stretches of the episode, the shorter where there are two."""
    if count is None:
        return pairs
    stretch = len(pairs) / count
    return [pairs[int(i * stretch + (stretch - 1) / 2)] for i in range(count)]


def objective() -> DPO:
    return DPO(DPOConfig(train_file="unused", beta=BETA))


def compared(pairs: list[Preference], batch: int) -> list[Preference]:
    """What TRL trains on: its first micro-batch repeats the longest pairs, to warm up."""
    return pairs[-batch:] + pairs


def run_ours(
    options: argparse.Namespace, episodes: list[Episode], pairs: list[Preference], batches: list[int]
) -> Result:
    examples = [preference for episode in episodes for preference in preferences(episode)]
    with Peak() as peak:
        gauges, seconds, layout = _measure_ours(options, examples, {b: compared(pairs, b) for b in batches})
    note = f"{layout}; {seconds:.3g} s a step"
    return Result("Bough", len(examples) / seconds, peak.gib, gauges, note)


def _measure_ours(
    options: argparse.Namespace, examples: list[Preference], gauged: dict[int, list[Preference]]
) -> tuple[dict[int, Gauge], float, str]:
    policy = policy_of(
        options.model,
        lora=Lora(options.rank, options.alpha),
        checkpointing=options.checkpointing,
        compile=options.compile,
    )
    ours = Ours(policy, objective(), options.budget)
    gauges = {batch: ours.gauge(of_batch) for batch, of_batch in gauged.items()}
    seconds = seconds_of(lambda: ours.step(examples), warm_up=options.warm_up, times=options.steps)
    return gauges, seconds, ours.layout(examples, seconds, reference=True)


def run_trl(options: argparse.Namespace, pairs: list[Preference], batch: int) -> Result:
    with Peak() as peak:
        watch = peer.run(_trainer(options, compared(pairs, batch), batch))
    seconds = watch.seconds(skip=1)
    note = f"{seconds / len(pairs):.3g} s a pair"
    return Result(f"TRL, batch {batch}", len(pairs) / seconds, peak.gib, {batch: watch.gauges[0]}, note)


def _trainer(options: argparse.Namespace, pairs: list[Preference], batch: int) -> Any:
    from datasets import Dataset
    from trl import DPOConfig as TRLConfig
    from trl import DPOTrainer

    class Tokenised(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    rows = [
        {
            "prompt_ids": list(pair.calls[0].prompt_ids),
            "chosen_ids": list(pair.calls[0].completion_ids),
            "rejected_ids": list(pair.calls[1].completion_ids),
        }
        for pair in pairs
    ]
    common = peer.settings(batch, len(pairs) // batch, 1, checkpointing=options.checkpointing)
    trainer = Tokenised(
        model=models.build(options.model),
        args=TRLConfig(**common, beta=BETA, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=peer.tokenizer(),
        peft_config=peer.lora_config(options.rank, options.alpha),
    )
    models.fill_adapter(trainer.model)
    return trainer


def compare(options: argparse.Namespace, rounds: int) -> None:
    source = Source(vocabulary(options.model))
    fill = options.episodes or max(1, options.budget // (442 + 104 * rounds))
    episodes = [source.episode(rounds, Lengths()) for _ in range(fill)]
    pairs = spaced(preferences(episodes[0]), options.subset)
    batches = [batch for batch in options.trl_batches if len(pairs) % batch == 0] or [1]
    mine = run_ours(options, episodes, pairs, batches)
    theirs: list[Result] = []
    for batch in batches:
        with failure_in(problems := []):
            theirs.append(run_trl(options, pairs, batch))
        print(f"TRL, batch {batch}: {problems[0] if problems else theirs[-1].note}", flush=True)
    if not theirs:
        raise SystemExit("Error: TRL ran with none of the batch sizes, for the reasons above")
    best = max(theirs, key=lambda result: result.pairs_per_s)
    print(f"\n### Round-wise DPO: {options.model}, {rounds} rounds, LoRA r={options.rank}\n\n{machine()}\n")
    for result in theirs:
        ((batch, gauge),) = result.gauges.items()
        print(
            f"The same {len(pairs) + batch} pairs in Bough and in {result.name}: {mine.gauges[batch].against(gauge)}\n"
        )
    rows = [
        [r.name, f"{r.pairs_per_s:.3g}", f"{r.peak_gib:.1f} GiB", f"{mine.pairs_per_s / r.pairs_per_s:.1f}×",
         f"{mine.peak_gib / r.peak_gib:.2f}×", r.note]
        for r in (mine, *theirs)
    ]  # fmt: skip
    print(table(["", "pairs/s", "peak memory", "Bough is faster by", "Bough's memory", ""], rows))
    print(f"\n**{mine.pairs_per_s / best.pairs_per_s:.1f}× TRL's best**\n", flush=True)


def vocabulary(model: str) -> int:
    return models.SHAPES[model][-1] if model in models.SHAPES else 49_152


def add_options(parser: argparse.ArgumentParser, *, rounds: list[int], batches: list[int]) -> None:
    parser.add_argument("--model", choices=[*models.NAMES, *models.HYBRIDS], default="tiny")
    parser.add_argument("--rounds", type=int, nargs="+", default=rounds)
    parser.add_argument("--trl-batches", type=int, nargs="+", default=batches, help="pairs in a batch of TRL's")
    parser.add_argument("--budget", type=int, default=8192, help="tokens in a row of ours")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--alpha", type=int, default=128)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, for both")
    parser.add_argument("--compile", action="store_true", help="our layers under torch.compile")
    parser.add_argument("--warm-up", type=int, default=2, help="steps of ours that are not counted")
    parser.add_argument("--steps", type=int, default=5, help="steps of ours that are counted")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=[15, 30], batches=[1, 3, 5, 15])
    parser.add_argument("--episodes", type=int, help="in one of our optimizer steps (default: as many as fill a row)")
    parser.add_argument("--subset", type=int, help="how many of an episode's pairs TRL gets")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for rounds in options.rounds:
        compare(options, rounds)


if __name__ == "__main__":
    main()
