"""The learning rate as a function of the step alone: nothing to save, nothing to lose."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["cosine", "linear", "constant"]


def learning_rate(step: int, num_steps: int, *, peak: float, warmup_ratio: float, decay: Decay) -> float:
    """The rate of step 0, 1, …, `num_steps` - 1.

    It rises in equal parts over the first `warmup_ratio` of the steps (the first step has
    its part already, never 0), stands at `peak` behind them, and falls towards 0, which
    it would reach one step behind the last.
    """
    warmup = math.ceil(num_steps * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, num_steps - warmup)
    if decay == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak * (1 - done) if decay == "linear" else peak
