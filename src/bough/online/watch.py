"""Watches over a run that learns from its own play, and says when something has gone wrong.

A reward can rise for the wrong reasons. What gives that away: held-out success falls,
replies or episodes grow or shrink without end, the policy no longer varies, or it has
moved far away from its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bough.config.online import WatchConfig

# Normal is the mean of this many first batches; now is the mean of this many last ones.
FIRST, LAST = 3, 3


@dataclass
class Watch:
    """Remembers each batch's numbers. `alarm` is a sentence, or None."""

    config: WatchConfig
    batches: list[dict[str, float]] = field(default_factory=list)
    held_out: list[tuple[float, float]] = field(default_factory=list)

    def see(self, values: dict[str, Any]) -> None:
        self.batches.append({name: float(value) for name, value in values.items() if isinstance(value, int | float)})
        if (success := values.get("eval_success")) is not None:
            self.held_out.append((float(success), self._now("reward") or 0.0))

    def alarm(self) -> str | None:
        if not self.config.enabled or len(self.batches) < FIRST + LAST:
            return self._fallen() if self.config.enabled else None
        return self._fallen() or self._drifted() or self._collapsed() or self._strayed()

    def _fallen(self) -> str | None:
        if len(self.held_out) < 2:
            return None
        best, reward_then = max(self.held_out)
        now, reward_now = self.held_out[-1]
        if best - now > self.config.drop and reward_now > reward_then:
            return (
                f"held-out success fell from {best:.1%} to {now:.1%} while the reward rose from {reward_then:.3g} to "
                f"{reward_now:.3g}: the policy may be gaming the reward"
            )
        return None

    def _drifted(self) -> str | None:
        for name, what in (("reply_tokens", "tokens per reply"), ("turns", "turns per episode")):
            before, now = self._first(name), self._now(name)
            if before and now and not 1 / self.config.growth <= now / before <= self.config.growth:
                return f"{what} went from {before:.3g} to {now:.3g}"
        return None

    def _collapsed(self) -> str | None:
        before, now = self._first("entropy"), self._now("entropy")
        if before and now is not None and now < before * self.config.entropy:
            return f"entropy fell from {before:.3g} to {now:.3g} nats per token: the policy hardly varies any more"
        return None

    def _strayed(self) -> str | None:
        now = self._now("start_kl")
        if now is not None and now > self.config.kl:
            return f"the policy is {now:.3g} nats per token away from its start"
        return None

    def _first(self, name: str) -> float | None:
        return _mean([batch[name] for batch in self.batches[:FIRST] if name in batch])

    def _now(self, name: str) -> float | None:
        return _mean([batch[name] for batch in self.batches[-LAST:] if name in batch])


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
