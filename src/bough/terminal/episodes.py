"""Progress of episodes."""

from __future__ import annotations

from typing import Any

from bough.plural import plural
from bough.terminal.progress import NumbersProgress


class EpisodesProgress(NumbersProgress):
    """A bar with episodes/s, tokens/s, successes and faults; plain lines if there is no terminal."""

    def __init__(self, total: int) -> None:
        super().__init__("episodes", at_once=False)
        self.total = total
        self.count_to(total)

    def tell(self, numbers: dict[str, Any]) -> None:
        """Shows the numbers of a tally."""
        episodes, seconds = numbers["episodes"], max(numbers["seconds"], 1e-9)
        rate = numbers["success_rate"]
        parts = [
            f"success {'–' if rate is None else f'{rate:.1%}'}",
            f"{episodes / seconds:.2g} episodes/s",
            f"{numbers['completion_tokens'] / seconds:,.0f} tokens/s",
        ]
        parts += [f"{count} {what}" for what, count in numbers["errors"].items()]
        parts += [plural(count, f"{what} fault") for what, count in numbers["faults"].items()]
        self.show(episodes, "  ".join(parts), f"{episodes} of {plural(self.total, 'episode')}")
