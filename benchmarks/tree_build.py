"""How fast trees are built, and what the LM head costs, on whatever device there is.

python benchmarks/tree_build.py
"""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bough.policy.head import Head, predict
from bough.trees.build import TokenTree, tree_rows
from bough.types import Call

CUDA = torch.cuda.is_available()
TOKENS, HIDDEN, VOCABULARY = (4096, 2560, 151_936) if CUDA else (2048, 576, 49_152)  # Qwen3-4B's head, SmolLM2-135M's


def episode(rng: np.random.Generator, rounds: int) -> list[Call]:
    """Round-wise pairs: each round two answers to the history so far, of which one becomes history."""
    history, calls = rng.integers(0, 50_000, 800).tolist(), []
    for _ in range(rounds):
        chosen, rejected = rng.integers(0, 50_000, (2, 25)).tolist()
        calls += [Call(prompt_ids=history, completion_ids=ids) for ids in (chosen, rejected)]
        history = history + chosen + rng.integers(0, 50_000, 60).tolist()
    return calls


def unrelated(rng: np.random.Generator) -> list[Call]:
    lengths = rng.integers(10, 400, 500).tolist()
    return [
        Call(prompt_ids=rng.integers(0, 9, n).tolist(), completion_ids=rng.integers(0, 9, 20).tolist()) for n in lengths
    ]


def measure_building() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    sets = {
        "1 episode of 30 rounds": episode(rng, 30),
        "16 episodes of 30 rounds": [call for _ in range(16) for call in episode(rng, 30)],
        "500 unrelated calls": unrelated(rng),
    }
    for name, calls in sets.items():
        tree = TokenTree.of(calls)
        build_s = best_of(lambda calls=calls: TokenTree.of(calls))
        rows_s = best_of(lambda calls=calls: tree_rows(calls, 8192))
        print(
            f"{name:25} {tree.num_raw:9,} tokens -> {len(tree):7,}   "
            f"tree {tree.num_raw / build_s / 1e6:5.1f} M tokens/s   rows of 8192 {tree.num_raw / rows_s / 1e6:5.1f} M/s"
        )


def best_of(work: Callable[[], object], repeats: int = 5) -> float:
    clock = time.perf_counter if CUDA else time.process_time  # a CPU may be shared
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        if CUDA:
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def whole(hidden: Tensor, targets: Tensor, layer: nn.Linear) -> Tensor:
    return -cross_entropy(layer(hidden).float(), targets, reduction="sum")


def ours(hidden: Tensor, targets: Tensor, layer: nn.Linear) -> Tensor:
    return predict(hidden, targets, Head(layer, VOCABULARY)).logprobs_M.sum()


def liger(hidden: Tensor, targets: Tensor, layer: nn.Linear) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss: Tensor = LigerFusedLinearCrossEntropyLoss(reduction="sum")(layer.weight, hidden, targets)
    return -loss


def torchs(hidden: Tensor, targets: Tensor, layer: nn.Linear) -> Tensor:
    from torch.nn.functional import linear_cross_entropy

    return -linear_cross_entropy(hidden, layer.weight, targets, reduction="sum")


HEADS = {"whole": whole, "torch": torchs, "ours": ours, "liger": liger}


def measure_head(name: str, trained: bool) -> None:
    """Forward and backward, in a process of its own for the sake of its peak."""
    torch.set_num_threads(1)
    device, dtype = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
    layer = nn.Linear(HIDDEN, VOCABULARY, bias=False, device=device, dtype=dtype).requires_grad_(trained)
    hidden = torch.randn(TOKENS, HIDDEN, device=device, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (TOKENS,), device=device)
    before = torch.cuda.memory_allocated() if CUDA else resident()

    def work() -> None:
        layer.weight.grad = hidden.grad = None
        HEADS[name](hidden, targets, layer).backward()

    seconds = best_of(work, 3 if CUDA else 1)
    peak = (torch.cuda.max_memory_allocated() if CUDA else resident()) - before
    print(f"head {name:6} {'trained' if trained else 'frozen':8} {seconds * 1e3:8.1f} ms   {peak / 2**20:7.0f} MiB")


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_head(sys.argv[1], sys.argv[2] == "trained")
    else:
        device = torch.cuda.get_device_name() if CUDA else "CPU, one thread"
        print(f"torch {torch.__version__}, {device}; head: {TOKENS} x {HIDDEN} x {VOCABULARY}")
        measure_building()
        heads = ["whole", "ours"]
        heads += ["torch"] if hasattr(torch.nn.functional, "linear_cross_entropy") else []
        heads += ["liger"] if CUDA and importlib.util.find_spec("liger_kernel") else []
        for head in heads:
            for mode in ("frozen", "trained"):
                subprocess.run([sys.executable, __file__, head, mode], check=True)
