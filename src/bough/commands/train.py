"""`bough sft`, `bough dpo` and `bough grpo`."""

from __future__ import annotations

from bough import train
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
from bough.policy.processes import Processes
from bough.terminal import console
from bough.training.metrics_file import MetricsFile
from bough.training.run import Trained


def sft(config: SFTConfig) -> int:
    return _tell(train.sft(config))


def dpo(config: DPOConfig) -> int:
    return _tell(train.dpo(config))


def grpo(config: GRPOConfig) -> int:
    return _tell(train.grpo(config))


def _tell(trained: Trained) -> int:
    """What came of it, said by one process for all."""
    if not Processes().first:
        return 0
    counters, out = trained.counters, console.out()
    lines = [line for line in MetricsFile.read(trained.weights.parent / "metrics.jsonl") if "loss" in line]
    if lines:
        out.print(f"loss {lines[0]['loss']:.4g} → {lines[-1]['loss']:.4g} in {counters.step} steps")
        if "accuracy" in lines[-1]:
            out.print(f"accuracy {lines[0]['accuracy']:.3g} → {lines[-1]['accuracy']:.3g}")
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than one by one"
    out.print(f"{counters.tokens_trained:,} tokens trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)
    return 0
