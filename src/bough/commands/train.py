"""`bough sft`, `bough dpo` and `bough grpo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bough import train
from bough.config.report import ReportConfig
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig
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
        console.print_json(_json(trained, changes))
    else:
        _print(trained, changes)
    return 0


def _print(trained: Trained, changes: dict[str, Change]) -> None:
    counters, out = trained.counters, console.out()
    if loss := changes.get("loss"):
        out.print(f"loss {loss.first:.4g} → {loss.last:.4g} in {counters.step} steps")
    for name, shown in COMPARED.items():
        if change := changes.get(name):
            lowest = f" (lowest {change.lowest:.4g})" if name == "eval_loss" and change.lowest < change.last else ""
            digits = 4 if name == "eval_loss" else 3
            out.print(f"{shown} {change.first:.{digits}g} → {change.last:.{digits}g}{lowest}")
    shared = counters.tokens_raw / max(1, counters.tokens_computed)
    computed = f"{counters.tokens_computed:,} computed, {shared:.1f}× fewer than without sharing"
    out.print(f"{counters.tokens_trained:,} tokens trained; {computed}")
    out.print(f"weights in {trained.weights}", markup=False)


def _json(trained: Trained, changes: dict[str, Change]) -> dict[str, Any]:
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
    }
