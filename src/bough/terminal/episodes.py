"""Episodes: what begins, and its progress."""

from __future__ import annotations

from typing import Any

from bough.config.evaluation import EvalConfig
from bough.config.rollouts import CollectConfig
from bough.paths import without_absolute, working_directory
from bough.plural import plural
from bough.terminal.console import announce
from bough.terminal.progress import NumbersProgress


def announce_episodes(config: CollectConfig | EvalConfig) -> None:
    """Says what is to be played, before what takes long: imports, loading a model, the first episodes."""
    environment = without_absolute(config.environment.name, *working_directory())
    what = f"{plural(config.tasks, 'task')} of {environment}"
    each = f", {config.attempts} attempts each," if config.attempts > 1 else ""
    models = config.agent.model if isinstance(config.agent.model, list) else [config.agent.model]
    adapter = f" and the adapter {config.agent.adapter}" if config.agent.adapter else ""
    announce(f"playing {what}{each} with {', '.join(models)}{adapter}; episodes go to {config.output}")


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
