"""`bough sft`, `bough dpo`, `bough grpo` and `bough distill`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bough import train
from bough.config.report import ReportConfig
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
from bough.plural import plural
from bough.policy.processes import Processes
from bough.terminal import console
from bough.training.metrics_file import MetricsFile
from bough.training.run import Trained

# Metrics that the closing lines compare, first against last, and what they are called there.
COMPARED = {
    "accuracy": "accuracy",
    "reward": "reward",
    "success": "success",
    "eval_loss": "held-out loss",
    "eval_accuracy": "held-out accuracy",
    "eval_success": "held-out success",
}


def sft(config: SFTConfig) -> int:
    return _report(config, train.sft(config))


def dpo(config: DPOConfig) -> int:
    return _report(config, train.dpo(config))


def grpo(config: GRPOConfig) -> int:
    return _report(config, train.grpo(config))


def distill(config: DistillConfig) -> int:
    return _report(config, train.distill(config))


@dataclass(frozen=True)
class Change:
    """A metric's first and last value in a run, and its lowest."""

    first: float
    last: float
    lowest: float

    @classmethod
    def of(cls, name: str, lines: list[dict[str, Any]]) -> Change | None:
        """The change of a metric over the logged lines; None where it was never measured."""
        values = [line[name] for line in lines if line.get(name) is not None]
        return cls(values[0], values[-1], min(values)) if values else None


def _report(config: ReportConfig, trained: Trained) -> int:
    """Prints the result, in one process for all."""
    if not Processes().first:
        return 0
    lines = MetricsFile.read(trained.weights.parent / "metrics.jsonl")
    changes = {name: change for name in ("loss", *COMPARED) if (change := Change.of(name, lines)) is not None}
    if config.as_json:
        console.print_json(_json(trained, changes, _sampling(lines)))
    else:
        _print(trained, changes, _sampling(lines))
    return 0


def _print(trained: Trained, changes: dict[str, Change], sampling: dict[str, float]) -> None:
    counters, out = trained.counters, console.out()
    if loss := changes.get("loss"):
        out.print(f"loss {loss.first:.4g} → {loss.last:.4g} in {plural(counters.step, 'step')}")
    for name, shown in COMPARED.items():
        if change := changes.get(name):
            lowest = f" (lowest {change.lowest:.4g})" if name == "eval_loss" and change.lowest < change.last else ""
            digits = 4 if name == "eval_loss" else 3
            out.print(f"{shown} {change.first:.{digits}g} → {change.last:.{digits}g}{lowest}")
    for line in _sampling_lines(sampling):
        out.print(line)
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{plural(counters.tokens_trained, 'token')} trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)


def _sampling(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of an online run went, over all its batches; empty for other runs."""
    batches = [line for line in lines if "batch_seconds" in line]
    seconds = sum(batch["batch_seconds"] for batch in batches)
    if not seconds:
        return {}
    means = (
        *("sampling_share", "training_share", "overlap_share", "idle_share"),
        *("sampled_tokens_per_s", "episodes_in_flight"),
    )
    return {
        **{name: sum(batch.get(name, 0.0) * batch["batch_seconds"] for batch in batches) / seconds for name in means},
        "staleness_mean": fmean(batch.get("staleness_mean", 0.0) for batch in batches),
        "staleness_max": max(batch.get("staleness_max", 0) for batch in batches),
        "calls_stale": batches[-1].get("calls_stale", 0),
        "calls_off_policy": sum(batch.get("calls_off_policy", 0) for batch in batches),
    }


def _sampling_lines(sampling: dict[str, float]) -> Iterator[str]:
    if not sampling:
        return
    both = f"{sampling['overlap_share']:.0%} both, " if sampling["overlap_share"] else ""
    yield (
        f"{sampling['sampling_share']:.0%} of the time sampling, {sampling['training_share']:.0%} training, "
        f"{both}{sampling['idle_share']:.0%} idle"
    )
    yield (
        f"{sampling['sampled_tokens_per_s']:,.0f} tokens/s sampled over the whole run, "
        f"{sampling['episodes_in_flight']:.3g} episodes in flight"
    )
    if sampling["staleness_max"] or sampling["calls_stale"]:
        yield (
            f"staleness {sampling['staleness_mean']:.2g} batches on average, {sampling['staleness_max']} at most; "
            f"{plural(sampling['calls_stale'], 'call')} dropped as too old"
        )
    if sampling["calls_off_policy"]:
        yield f"{plural(sampling['calls_off_policy'], 'call')} sampled with top_p, top_k or min_p: slightly off-policy"


def _json(trained: Trained, changes: dict[str, Change], sampling: dict[str, float]) -> dict[str, Any]:
    counters = trained.counters
    return {
        "weights": str(trained.weights),
        "steps": counters.step,
        "metrics": {name: {"first": change.first, "last": change.last} for name, change in changes.items()},
        "best_eval_loss": counters.best_loss,
        "tokens_trained": counters.tokens_trained,
        "tokens_computed": counters.tokens_computed,
        "tokens_without_sharing": counters.tokens_raw,
        "ledgers": trained.ledgers,
    } | ({"sampling": sampling} if sampling else {})
