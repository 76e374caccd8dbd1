"""FlexAttention on the rows of trees: what the kernel's options are worth.

    python benchmarks/attention.py [--shape qwen3-4b] [--work dpo think] [--options default safe tma autotune]

One layer of each shape; `sft` is a step of 32 episodes, `small` of 4. "Expanded" gives each head keys and
values of its own, so that a backward pass has more programs to run side by side. A block of the mask that is
seen whole needs no look at single tokens. FLOPs are those of the pairs of tokens that see each other, twice
as many backward as forward: what the kernel computes again is not counted.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
import torch
from dpo import preferences
from episodes import Lengths, Source
from measure import failure_in, machine, seconds_of, table
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from bough.trees.attend import BLOCK, block_mask
from bough.trees.build import Ids, TokenTree
from bough.trees.mixers import Sight
from bough.types import Call

# Heads, key-value heads, size of a head.
SHAPES = {"qwen3-4b": (32, 8, 128), "qwen3-0.6b": (16, 8, 128), "smollm2-135m": (9, 3, 64)}
OPTIONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "default": ({}, None),
    "safe": ({"ROWS_GUARANTEED_SAFE": True}, None),
    "prescaled": ({"ROWS_GUARANTEED_SAFE": True, "PRESCALE_QK": True}, None),
    "tma": ({"ROWS_GUARANTEED_SAFE": True, "USE_TMA": True}, None),
    "expanded": ({"ROWS_GUARANTEED_SAFE": True}, None),
    "autotune": ({"ROWS_GUARANTEED_SAFE": True}, "max-autotune-no-cudagraphs"),
}
EPISODES = {"sft": 32, "small": 4}


def calls_of(work: str) -> list[Call]:
    source = Source(151_936)
    if work == "dpo":
        return [call for _ in range(2) for pair in preferences(source.episode(30, Lengths())) for call in pair.calls]
    if work == "think":
        return source.episode(30, Lengths(think=150)).calls()
    if work in EPISODES:
        return [call for _ in range(EPISODES[work]) for call in source.episode(9, Lengths()).calls()]
    attempts = source.attempts(8, 4, Lengths(start=2560, answer=300, observation=100))
    return [call for attempt in attempts for call in attempt.calls()]


def mask_of(end: Ids, position: Ids, device: torch.device) -> BlockMask:
    length = -(-len(end) // BLOCK) * BLOCK
    end_L, position_L = np.arange(1, length + 1), np.zeros(length, np.int64)
    end_L[: len(end)], position_L[: len(end)] = end, position
    return block_mask(torch.tensor(end_L, device=device), torch.tensor(position_L, device=device), Sight())


def measure(mask: BlockMask, pairs: int, shape: tuple[int, int, int], name: str, times: int) -> list[object]:
    (heads, groups, size), (options, mode) = shape, OPTIONS[name]
    torch._dynamo.reset()  # a function is compiled a limited number of times
    attend = torch.compile(flex_attention, dynamic=mode is None, mode=mode)
    cuda = torch.cuda.is_available()
    kind = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True} if cuda else {}
    length = mask.seq_lengths[0]
    query, key, value = (torch.randn(1, count, length, size, **kind) for count in (heads, groups, groups))

    def forward() -> torch.Tensor:
        if name == "expanded":
            keys, values = (states.repeat_interleave(heads // groups, 1) for states in (key, value))
            return attend(query, keys, values, block_mask=mask, kernel_options=options)
        return attend(query, key, value, block_mask=mask, enable_gqa=True, kernel_options=options)

    def both() -> None:
        forward().sum().backward()

    with torch.no_grad():
        seconds = seconds_of(forward, warm_up=2, times=times)
    flops = 4 * heads * size * pairs
    result = [f"{seconds * 1e3:.3g} ms", f"{flops / seconds / 1e12:.3g}"]
    if cuda:
        seconds = seconds_of(both, warm_up=2, times=times)
        result += [f"{seconds * 1e3:.3g} ms", f"{3 * flops / seconds / 1e12:.3g}"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["qwen3-4b"])
    parser.add_argument("--work", choices=["dpo", "think", "grpo", *EPISODES], nargs="+", default=["dpo", "think"])
    parser.add_argument("--options", choices=OPTIONS, nargs="+", default=["default", "safe", "tma"])
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    rows: list[list[object]] = []
    for work in options.work:
        tree = TokenTree.of(calls_of(work))
        mask = mask_of(tree.end, tree.position, device)
        blocks = f"{int(mask.kv_num_blocks.sum())} in part, {int(mask.full_kv_num_blocks.sum())} whole"
        for shape, name in itertools.product(options.shape, options.options):
            result: list[object] = []
            with failure_in(problems := []):
                result = measure(mask, int((tree.position + 1).sum()), SHAPES[shape], name, options.times)
            rows.append([shape, work, blocks, name, *(result or problems)])
            print(rows[-1], flush=True)
    print(f"\n### FlexAttention, one layer\n\n{machine()}\n")
    print(table(["shape", "row", "blocks", "options", "forward", "TFLOP/s", "with backward", "TFLOP/s"], rows))


if __name__ == "__main__":
    main()
