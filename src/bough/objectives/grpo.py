"""Group-relative policy optimisation: the clipped surrogate, and how tokens are averaged.

Advantages come from `advantages.py`; this file only needs one per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bough.errors import did_you_mean
from bough.metrics import Mean
from bough.objectives.base import Loss, float_vectors, share

Averaging = Literal["token_mean", "sequence_mean", "constant_length"]

# Past e^20 an exponential goes on along its tangent: it stays finite in float32, and unlike
# a clamp it keeps a gradient just where the policy has gone furthest astray.
MAX_EXPONENT = 20.0


class Aggregation(NamedTuple):
    """A weight for every token of each sequence, and these sequences' share of the denominator."""

    weights: list[float]
    denominator: float


def aggregation_weights(
    lengths: Sequence[int], how: Averaging = "token_mean", *, constant_length: int | None = None
) -> Aggregation:
    """How the tokens of sequences average into one loss: weights, and what to divide by.

    `lengths` are trained tokens per sequence; a sequence is a whole trajectory, however
    many calls it has. A sequence without tokens counts nowhere.

    | how             | a token's weight    | share of the denominator | paper                |
    |-----------------|---------------------|--------------------------|----------------------|
    | token_mean      | 1                   | Σ lengths                | DAPO, 2503.14476     |
    | sequence_mean   | 1 / its length      | number of sequences      | GRPO, 2402.03300     |
    | constant_length | 1 / constant_length | number of sequences      | Dr. GRPO, 2503.20783 |

    Shares add up over micro-batches and ranks to the one denominator that `grpo_loss` takes.
    """
    num_sequences = sum(length > 0 for length in lengths)
    if how == "token_mean":
        return Aggregation([1.0] * len(lengths), float(sum(lengths)))
    if how == "sequence_mean":
        return Aggregation([1 / max(length, 1) for length in lengths], float(num_sequences))
    if how != "constant_length":
        raise ValueError(f"{how!r} is not a way to average tokens{did_you_mean(how, get_args(Averaging))}")
    if constant_length is None or constant_length < 1:
        raise ValueError(f"constant_length is {constant_length}; averaging by it needs a length of at least 1")
    return Aggregation([1 / constant_length] * len(lengths), float(num_sequences))


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
    reference_logprobs_N: Tensor | None = None,
    sampler_logprobs_N: Tensor | None = None,
    importance_cap: float = 2.0,
) -> Loss:
    """−Σ w · (s · gain − kl_coef · k3) / `denominator`, over the N trained tokens of a micro-batch.

    With ratio ρ = exp(log π − log π_old) and advantage A (GRPO, 2402.03300, after PPO,
    1707.06347; separate bounds from DAPO, 2503.14476):

        gain = min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high) A),  and for A < 0 with dual clip
        gain = max(gain, dual_clip · A)                          (1912.09729; DAPO runs with 10)

    So a token has no gradient when A > 0 and ρ > 1 + clip_high, when A < 0 and ρ < 1 − clip_low,
    when A < 0 and ρ > dual_clip; and the gradient −w s ρ A / denominator otherwise.

    `old_logprobs_N` are the trainer's own before its first update on this data (on-policy:
    `logprobs_N.detach()`). Where the sampler is another engine its log-probabilities of the
    same tokens differ; given as `sampler_logprobs_N` they correct that by truncated importance
    sampling, s = min(exp(log π_old − log π_sampler), importance_cap), a constant for the
    gradient (Ionides 2008; for LLMs Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"). Without them s = 1.

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
    farthest = math.inf if dual_clip is None else dual_clip
    _check_settings(clip_low, clip_high, farthest, importance_cap)
    if kl_coef and reference_logprobs_N is None:
        raise ValueError(f"kl_coef is {kl_coef}, but there are no reference log-probabilities to stay near")

    logprobs_N, old_N, advantages_N, weights_N = float_vectors(logprobs_N, old_logprobs_N, advantages_N, weights_N)
    old_N = old_N.detach()
    log_ratio_N = logprobs_N - old_N
    ratio_N = _exp(log_ratio_N)
    too_high_N = (advantages_N > 0) & (ratio_N > 1 + clip_high)
    too_low_N = (advantages_N < 0) & (ratio_N < 1 - clip_low)
    too_far_N = (advantages_N < 0) & (ratio_N > farthest)
    # The masks are the clip: a masked token's ratio is a constant, any other keeps its gradient.
    bounded_N = ratio_N.masked_fill(too_high_N, 1 + clip_high).masked_fill(too_low_N, 1 - clip_low)
    gain_N = bounded_N.masked_fill(too_far_N, farthest) * advantages_N
    values = {
        "ratio": ratio_N,
        "clip_high_fraction": too_high_N.float(),
        "clip_low_fraction": too_low_N.float(),
        "dual_clip_fraction": too_far_N.float(),
        "approx_kl": k3(log_ratio_N),
        "entropy": -logprobs_N,
    }
    if sampler_logprobs_N is not None:
        sampler_N, _ = float_vectors(sampler_logprobs_N, old_N)
        mismatch_N = old_N - sampler_N.detach()
        importance_N = _exp(mismatch_N).clamp(max=importance_cap)
        gain_N = gain_N * importance_N
        values["mismatch_kl"] = k3(mismatch_N)
        values["importance_weight"] = importance_N
        values["importance_capped_fraction"] = (mismatch_N > math.log(importance_cap)).float()
    if reference_logprobs_N is not None:
        reference_N, _ = float_vectors(reference_logprobs_N, old_N)
        values["reference_kl"] = k3(reference_N.detach() - logprobs_N)
        gain_N = gain_N - kl_coef * values["reference_kl"]
    metrics = {name: Mean.over(value_N, weights_N > 0) for name, value_N in values.items()}
    return Loss(share(-(weights_N * gain_N).sum(), denominator), metrics)


def _check_settings(clip_low: float, clip_high: float, dual_clip: float, importance_cap: float) -> None:
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low is {clip_low}; a ratio falls by at most 1, so it lies in [0, 1]")
    if clip_high < 0:
        raise ValueError(f"clip_high is {clip_high}; it is how far a ratio may rise above 1, so not negative")
    if dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip is {dual_clip}; it bounds ratios beyond the clip range, so above {1 + clip_high}")
    if importance_cap <= 0:
        raise ValueError(f"importance_cap is {importance_cap}; it bounds a positive weight, so above 0")


def k3(log_ratio_N: Tensor) -> Tensor:
    """e^d − d − 1 ≥ 0 for the log-ratio d = log q − log p of tokens sampled from p: an estimate of KL(p ‖ q).

    Unbiased and of low variance (joschu.net/blog/kl-approx). Linear past d = `MAX_EXPONENT`.
    """
    # expm1, because near 0 the terms of e^d − d − 1 cancel to nothing in float32.
    return torch.expm1(log_ratio_N.clamp(max=MAX_EXPONENT)) + _past_bound(log_ratio_N) - log_ratio_N


def _exp(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.clamp(max=MAX_EXPONENT).exp() + _past_bound(log_ratio_N)


def _past_bound(log_ratio_N: Tensor) -> Tensor:
    """What the tangent of the exponential at `MAX_EXPONENT` adds beyond it."""
    return math.exp(MAX_EXPONENT) * (log_ratio_N - MAX_EXPONENT).relu()
