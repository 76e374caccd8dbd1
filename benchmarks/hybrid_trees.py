"""Round-wise DPO of a model whose layers carry state: trees, plain rows, and TRL's DPOTrainer.

    python benchmarks/hybrid_trees.py --checkpointing   # on a GPU: the shape of Qwen3.5-4B
    python benchmarks/hybrid_trees.py --small           # on a CPU: the same layers, much smaller

LoRA on all linear layers; the reference is the adapter switched off, computed in the step by
all three. Plain rows are what such models were trained in before they could read trees: calls
of similar length side by side, padded. TRL's batch size is the fastest of those given. Before
the clock starts all three compute loss and gradient norm of the same pairs. With --subset,
plain rows and TRL get only some of the pairs, evenly spaced over the rounds.

Where flash-linear-attention refuses the gradient of its gated delta rule (`trees/mixers.py`), all
three use the same kernel in its place. Triton tunes the kernels in the first step, which can take
minutes; --tune limits how many configurations of a kernel it tries, for all three alike.
"""

from __future__ import annotations

import argparse

import torch
from dpo import Result, add_options, compared, objective, preferences, run_trl, spaced
from episodes import Episode, Lengths, Source
from measure import Peak, failure_in, machine, seconds_of, table
from ours import Ours, policy_of
from tuning import limit_tuning

import models
from bough.methods.dpo import Preference
from bough.policy.adapters import Lora


def run_ours(
    options: argparse.Namespace, examples: list[Preference], pairs: list[Preference], batches: list[int], *, tree: bool
) -> Result:
    with Peak() as peak:
        policy = policy_of(
            options.model,
            lora=Lora(options.rank, options.alpha),
            checkpointing=options.checkpointing,
            compile=options.compile,
        )
        assert policy.obstacle is None
        if not tree:
            policy.row_reader.obstacle = "to be compared with"
        ours = Ours(policy, objective(), options.budget)
        gauges = {batch: ours.gauge(compared(pairs, batch)) for batch in batches}
        seconds = seconds_of(lambda: ours.step(examples), warm_up=options.warm_up, times=options.steps)
        rows = ours.laid_out(examples).rows
    raw, computed = sum(row.num_raw for row in rows), sum(row.tokens.size for row in rows)
    plural = "s" if len(rows) > 1 else ""
    note = f"{raw:,} tokens as {computed:,} in {len(rows)} row{plural}; {seconds:.3g} s a step"
    note += f", {raw / seconds:,.0f} tokens/s counted call by call, {computed / seconds:,.0f} computed"
    return Result("Bough, trees" if tree else "Bough, plain rows", len(examples) / seconds, peak.gib, gauges, note)


def compare(options: argparse.Namespace, rounds: int) -> None:
    shape, _ = models.HYBRIDS[options.model]
    source = Source(shape[-1])
    fill = options.episodes or max(1, options.budget // (442 + 104 * rounds))
    episodes = [source.episode(rounds, Lengths()) for _ in range(fill)]
    pairs = spaced(preferences(episodes[0]), options.subset)
    batches = [batch for batch in options.trl_batches if len(pairs) % batch == 0] or [1]
    tree = run_ours(options, _all(episodes), pairs, batches, tree=True)
    print(f"{tree.name}: {tree.note}", flush=True)
    others = [run_ours(options, pairs if options.subset else _all(episodes), pairs, batches, tree=False)]
    print(f"{others[0].name}: {others[0].note}", flush=True)
    for batch in batches:
        with failure_in(problems := []):
            others.append(run_trl(options, pairs, batch))
        print(f"TRL, batch {batch}: {problems[0] if problems else others[-1].note}", flush=True)
    print(f"\n### Round-wise DPO: {options.model}, {rounds} rounds, LoRA r={options.rank}\n\n{machine()}\n")
    for result in others:
        batch = next(iter(result.gauges))
        same = tree.gauges[batch].against(result.gauges[batch])
        print(f"The same {len(pairs) + batch} pairs in trees and in {result.name}: {same}\n")
    rows = [
        [r.name, f"{r.pairs_per_s:.3g}", f"{r.peak_gib:.1f} GiB", f"{tree.pairs_per_s / r.pairs_per_s:.1f}×", r.note]
        for r in (tree, *others)
    ]
    print(table(["", "pairs/s", "peak memory", "trees are faster by", ""], rows), flush=True)


def _all(episodes: list[Episode]) -> list[Preference]:
    return [preference for episode in episodes for preference in preferences(episode)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=[30], batches=[1, 3, 6, 15])
    parser.set_defaults(model="qwen3.5-4b")
    parser.add_argument("--episodes", type=int, help="in one of our optimizer steps (default: as many as fill a row)")
    parser.add_argument("--subset", type=int, help="how many of an episode's pairs plain rows and TRL get")
    parser.add_argument("--tune", type=int, help="how many configurations of a kernel Triton tries (default: all)")
    parser.add_argument(
        "--small", action="store_true", help="the small shape, one timed step, six pairs for the others"
    )
    options = parser.parse_args()
    if options.small:
        options.model, options.rank, options.subset, options.episodes = "qwen3.5-small", 8, 2, 1
        options.warm_up, options.steps, options.trl_batches = 0, 1, [1]
    torch.set_num_threads(options.threads)
    if options.tune:
        limit_tuning(options.tune)
    for rounds in options.rounds:
        compare(options, rounds)


if __name__ == "__main__":
    main()
