"""Supervised fine-tuning: the weighted negative log-likelihood of the answered tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

from torch import Tensor

from bough.metrics import Mean
from bough.objectives.base import Loss, float_vectors, share


def sft_loss(logprobs_N: Tensor, weights_N: Tensor, *, denominator: float) -> Loss:
    """−Σ w·log π / `denominator`, over the N trained tokens of a micro-batch.

    Shapes: both [N], one entry per trained token; a token's weight is its step's.
    `denominator` is the sum of the weights of the whole optimizer step, over all
    micro-batches and ranks (the number of tokens where every weight is 1), so that the
    loss is a weighted mean and every token weighs the same wherever it lands.

    Metrics: `nll`, unweighted, over tokens of positive weight; `weight`, over all tokens.
    """
    logprobs_N, weights_N = float_vectors(logprobs_N, weights_N)
    metrics = {
        "nll": Mean.over(-logprobs_N, weights_N > 0),
        "weight": Mean(weights_N.detach().sum(), len(weights_N)),
    }
    return Loss(share(-(weights_N * logprobs_N).sum(), denominator), metrics)


def step_weights(rewards: Sequence[float | None]) -> list[float]:
    """Weights for one trajectory's steps: step reward / mean step reward, never negative.

    With r⁺ = max(r, 0):  w_j = r⁺_j / mean(r⁺), the mean taken over the scored steps
    (knowlyr-trainer's step weights, made safe for rewards of any sign).

    - The weights average 1, so a weighted trajectory counts as much as an unweighted one;
      each lies in [0, number of scored steps]; equal rewards give 1; the unit of the
      rewards does not matter.
    - A negative reward counts as 0: its step is not imitated. A negative weight would turn
      cross-entropy into a reward for any other answer, without a floor.
    - None (not scored) weighs 1, and stays out of the mean.
    - Where no scored reward is positive there is nothing to prefer, and all weigh 1.
      Weights order the steps of a trajectory; whether to imitate it at all is curation's choice.
    """
    gains = [None if reward is None else max(reward, 0.0) for reward in rewards]
    scored = [gain for gain in gains if gain is not None]
    largest = max(scored, default=0.0)
    if largest == 0:
        return [1.0] * len(gains)
    # In units of a power of two near the largest reward: exact, and no mean overflows or vanishes.
    _, exponent = math.frexp(largest)
    centre = mean(math.ldexp(gain, -exponent) for gain in scored)
    return [1.0 if gain is None else math.ldexp(gain, -exponent) / centre for gain in gains]
