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

# Metrics that the closing lines compare, first against last, and what they are called there.
COMPARED = {"accuracy": "accuracy", "reward": "reward", "success": "success", "eval_success": "held-out success"}


def sft(config: SFTConfig) -> int:
    return _report(train.sft(config))


def dpo(config: DPOConfig) -> int:
    return _report(train.dpo(config))


def grpo(config: GRPOConfig) -> int:
    return _report(train.grpo(config))


def _report(trained: Trained) -> int:
    """Prints the result, in one process for all."""
    if not Processes().first:
        return 0
    counters, out = trained.counters, console.out()
    lines = [line for line in MetricsFile.read(trained.weights.parent / "metrics.jsonl") if "loss" in line]
    if lines:
        out.print(f"loss {lines[0]['loss']:.4g} → {lines[-1]['loss']:.4g} in {counters.step} steps")
    for name, shown in COMPARED.items():
        if values := [line[name] for line in lines if line.get(name) is not None]:
            out.print(f"{shown} {values[0]:.3g} → {values[-1]:.3g}")
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{counters.tokens_trained:,} tokens trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)
    return 0
