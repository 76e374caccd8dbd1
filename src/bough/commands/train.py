"""`bough sft`, `bough dpo` and `bough grpo`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

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
    for line in _sampling_lines([line for line in lines if "sampling_share" in line]):
        out.print(line)
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{counters.tokens_trained:,} tokens trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)
    return 0


def _sampling_lines(batches: list[dict[str, Any]]) -> Iterator[str]:
    """Where the time of an online run went, over all its batches."""
    seconds: float = sum(batch["batch_seconds"] for batch in batches)
    if not seconds:
        return

    def mean(name: str) -> float:
        total: float = sum(batch[name] * batch["batch_seconds"] for batch in batches)
        return total / seconds

    yield (
        f"{mean('sampling_share'):.0%} of the time sampling, {mean('training_share'):.0%} training, "
        f"{mean('idle_share'):.0%} idle"
    )
    yield (
        f"{mean('sampled_tokens_per_s'):,.0f} tokens/s sampled over the whole run, "
        f"{mean('episodes_in_flight'):.3g} episodes in flight"
    )
    stale = batches[-1].get("calls_stale", 0)
    staleness = fmean(batch.get("staleness_mean", 0.0) for batch in batches)
    most = max(batch.get("staleness_max", 0) for batch in batches)
    if most or stale:
        yield f"staleness {staleness:.2g} batches on average, {most} at most; {stale} calls dropped as too old"
    if cut := sum(batch.get("calls_off_policy", 0) for batch in batches):
        yield f"{cut:,} calls sampled with top_p, top_k or min_p: slightly off-policy"
