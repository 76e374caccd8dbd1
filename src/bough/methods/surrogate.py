"""The clipped surrogate: functions of the ratio between two policies' probabilities of the same tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from bough.methods.base import float_vectors

if TYPE_CHECKING:
    from torch import Tensor

# Past e^20 an exponential continues along its tangent: it stays finite in float32, and unlike
# a clamp it keeps a gradient just where the policy has moved furthest.
MAX_EXPONENT = 20.0


class Measured(NamedTuple):
    """A value per token, and what is measured beside it, by the name of the metric."""

    value_N: Tensor
    metrics: dict[str, Tensor]


def clipped(
    log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> Measured:
    """The gain of each token (GRPO, 2402.03300, after PPO, 1707.06347; separate bounds from DAPO, 2503.14476).

        gain = min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high) A),  and for A < 0 with dual clip
        gain = max(gain, dual_clip · A)                          (1912.09729; DAPO runs with 10)

    So a token has no gradient when A > 0 and ρ > 1 + clip_high, when A < 0 and ρ < 1 − clip_low,
    when A < 0 and ρ > dual_clip; and the gradient −w s ρ A / denominator otherwise.
    """
    farthest = math.inf if dual_clip is None else dual_clip
    ratio_N = _exp(log_ratio_N)
    too_high_N = (advantages_N > 0) & (ratio_N > 1 + clip_high)
    too_low_N = (advantages_N < 0) & (ratio_N < 1 - clip_low)
    too_far_N = (advantages_N < 0) & (ratio_N > farthest)
    # The masks are the clip: a masked token's ratio is a constant, any other keeps its gradient.
    bounded_N = ratio_N.masked_fill(too_high_N, 1 + clip_high).masked_fill(too_low_N, 1 - clip_low)
    metrics = {
        "ratio": ratio_N,
        "clip_high_fraction": too_high_N.float(),
        "clip_low_fraction": too_low_N.float(),
        "dual_clip_fraction": too_far_N.float(),
        "approx_kl": k3(log_ratio_N),
    }
    return Measured(bounded_N.masked_fill(too_far_N, farthest) * advantages_N, metrics)


def importance_weights(old_N: Tensor, sampler_logprobs_N: Tensor, cap: float) -> Measured:
    """Truncated importance sampling: s = min(exp(log π_old − log π_sampler), cap), a constant for the gradient.

    Ionides 2008; for LLMs Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training".
    """
    sampler_N, _ = float_vectors(sampler_logprobs_N, old_N)
    mismatch_N = old_N - sampler_N.detach()
    importance_N = _exp(mismatch_N).clamp(max=cap)
    metrics = {
        "mismatch_kl": k3(mismatch_N),
        "importance_weight": importance_N,
        "importance_capped_fraction": (mismatch_N > math.log(cap)).float(),
    }
    return Measured(importance_N, metrics)


def k3(log_ratio_N: Tensor) -> Tensor:
    """e^d − d − 1 ≥ 0 for the log-ratio d = log q − log p of tokens sampled from p: an estimate of KL(p ‖ q).

    Unbiased and of low variance (joschu.net/blog/kl-approx). Linear past d = `MAX_EXPONENT`.
    """
    # expm1, because near 0 the terms of e^d − d − 1 cancel to nothing in float32.
    return log_ratio_N.clamp(max=MAX_EXPONENT).expm1() + _past_bound(log_ratio_N) - log_ratio_N


def _exp(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.clamp(max=MAX_EXPONENT).exp() + _past_bound(log_ratio_N)


def _past_bound(log_ratio_N: Tensor) -> Tensor:
    """What the tangent of the exponential at `MAX_EXPONENT` adds beyond it."""
    return math.exp(MAX_EXPONENT) * (log_ratio_N - MAX_EXPONENT).relu()
