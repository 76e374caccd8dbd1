"""GRPO's loss, the clipped surrogate, and its parts: functions of the ratio between two policies' probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bough.methods.base import Loss, float_vectors, share
from bough.metrics import Mean
from bough.types import Call

if TYPE_CHECKING:
    from torch import Tensor

# Past e^20 an exponential continues along its tangent: it stays finite in float32, and unlike
# a clamp it keeps a gradient just where the policy has moved furthest.
MAX_EXPONENT = 20.0


class Measured(NamedTuple):
    """A value per token, and what is measured beside it, by the name of the metric."""

    value_N: Tensor
    metrics: dict[str, Tensor]


def grpo_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    *,
    denominator: float,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    reference_logprobs_N: Tensor | None = None,
    sampler_logprobs_N: Tensor | None = None,
    importance_cap: float = 2.0,
) -> Loss:
    """−Σ w · (s · (gain + entropy_coef · h) − kl_coef · k3) / `denominator`, over a micro-batch's N trained tokens.

    With ratio ρ = exp(log π − log π_old) and advantage A, the gain is that of `clipped`.

    `old_logprobs_N` are the trainer's own before its first update on this data (on-policy:
    `logprobs_N.detach()`). Where the sampler is another engine its log-probabilities of the
    same tokens differ; given as `sampler_logprobs_N`, they correct for that (`importance_weights`).

    h is the entropy bonus of `entropy_gain`, off by default.

    k3 is Schulman's estimate of KL(π ‖ π_ref), e^d − d − 1 with d = log π_ref − log π. It is off by
    default; a reference with `kl_coef` 0 is measured only.

    Shapes: all [N], one entry per trained token. `weights_N` and `denominator` are from
    `aggregation_weights`, `denominator` summed over all micro-batches and ranks of the
    optimizer step. A token of weight 0 counts in no metric.

    Metrics, per trained token: `ratio`; `clip_high_fraction`, `clip_low_fraction`,
    `dual_clip_fraction` (tokens without a gradient, by cause); `approx_kl`, k3 of
    KL(π_old ‖ π); `entropy`, estimated as −log π of the sampled tokens. With a reference
    `reference_kl`; with a sampler `mismatch_kl`, k3 of KL(π_sampler ‖ π_old),
    `importance_weight` (s) and `importance_capped_fraction`.
    """
    assert not kl_coef or reference_logprobs_N is not None, "a divergence needs a reference"
    logprobs_N, old_N, advantages_N, weights_N = float_vectors(logprobs_N, old_logprobs_N, advantages_N, weights_N)
    old_N = old_N.detach()
    gain_N, values = clipped(logprobs_N - old_N, advantages_N, clip_low, clip_high, dual_clip)
    values["entropy"] = -logprobs_N
    if entropy_coef:
        gain_N = gain_N + entropy_coef * entropy_gain(logprobs_N, old_N)
    if sampler_logprobs_N is not None:
        importance_N, measured = importance_weights(old_N, sampler_logprobs_N, importance_cap)
        gain_N = gain_N * importance_N
        values |= measured
    if reference_logprobs_N is not None:
        reference_N, _ = float_vectors(reference_logprobs_N, old_N)
        values["reference_kl"] = k3(reference_N.detach() - logprobs_N)
        gain_N = gain_N - kl_coef * values["reference_kl"]
    metrics = {name: Mean.over(value_N, weights_N > 0) for name, value_N in values.items()}
    return Loss(share(-(weights_N * gain_N).sum(), denominator), metrics)


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
    ratio_N = bounded_exp(log_ratio_N)
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


def entropy_gain(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """An estimate of the policy's entropy from the sampled tokens alone, with its gradient.

        h = −log π · ρ,  with −log π a constant for the gradient

    Over tokens sampled from π_old its gradient is that of the entropy: ∇H = −E_π[log π · ∇ log π],
    because E_π[∇ log π] = 0. On-policy (ρ = 1) it is what a reward of −log π per token would add
    (Williams and Peng, 1991).
    """
    return -logprobs_N.detach() * bounded_exp(logprobs_N - old_logprobs_N)


def sampler_logprobs(calls: Sequence[Call], old_N: Tensor, temperature: float | None) -> Tensor | None:
    """The sampler's log-probabilities of the calls' answers; None where no call has any.

    A call without them gets those before the update, so nothing is corrected. The trainer's are
    at `temperature`, or if that is None at the one that each call was sampled at. The sampler's at
    another temperature cannot be compared with them: they count as missing.
    """
    import torch

    wanted = [call.sampled_at if temperature is None else temperature for call in calls]
    values = [
        call.logprobs if call.logprobs_temperature == at else None for call, at in zip(calls, wanted, strict=True)
    ]
    if all(value is None for value in values):
        return None
    pieces = torch.split(old_N, [len(call.completion_ids) for call in calls])
    return torch.cat([p if v is None else p.new_tensor(v) for p, v in zip(pieces, values, strict=True)])


def importance_weights(old_N: Tensor, sampler_logprobs_N: Tensor, cap: float) -> Measured:
    """Truncated importance sampling: s = min(exp(log π_old − log π_sampler), cap), a constant for the gradient.

    Ionides 2008; for LLMs Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training".
    """
    sampler_N, _ = float_vectors(sampler_logprobs_N, old_N)
    mismatch_N = old_N - sampler_N.detach()
    importance_N = bounded_exp(mismatch_N).clamp(max=cap)
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


def bounded_exp(log_ratio_N: Tensor) -> Tensor:
    """e^d, linear past d = `MAX_EXPONENT`."""
    return log_ratio_N.clamp(max=MAX_EXPONENT).exp() + _past_bound(log_ratio_N)


def _past_bound(log_ratio_N: Tensor) -> Tensor:
    """What the tangent of the exponential at `MAX_EXPONENT` adds beyond it."""
    return math.exp(MAX_EXPONENT) * (log_ratio_N - MAX_EXPONENT).relu()
