"""Progress of a training run: a bar with the main numbers, plain lines if there is no terminal."""

from __future__ import annotations

from typing import Any

from bough.ledger import Ledger
from bough.plural import plural
from bough.terminal.progress import NumbersProgress

SHOWN = ("loss", "accuracy", "margin", "eval_loss", "reward", "success", "eval_success")


class TrainingProgress(NumbersProgress):
    """Shows every step."""

    def __init__(self) -> None:
        super().__init__("step", at_once=True)
        self.numbers: dict[str, float] = {}

    def begin(self, num_steps: int, *ledgers: Ledger) -> None:
        self.console.print("; ".join([*map(str, ledgers), plural(num_steps, "step")]), markup=False)
        self.count_to(num_steps)

    def tell(self, values: dict[str, Any]) -> None:
        self.numbers |= {name: values[name] for name in SHOWN if name in values}
        if "tokens_per_s" in values:
            self.numbers |= {"tokens/s": values["raw_tokens_per_s"], "shared": values["shared"]}
        text = "  ".join(
            f"{name} {_short(value)}{'×' if name == 'shared' else ''}" for name, value in self.numbers.items()
        )
        self.show(values["step"], text, f"step {values['step']}")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
