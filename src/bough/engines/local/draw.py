"""From logits to a token and its log-probability.

A draw takes one number between 0 and 1, which follows from the call's seed and the place
in the answer alone, and reads off the token where the probabilities, added up in the
order of the vocabulary, pass it. No generator is carried along, so it is all the same
what else is drawn meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from bough.config.groups import SamplingConfig

BLOCK = 128  # weights that are added up together


class SamplingParams(NamedTuple):
    """How each of B tokens is to be drawn, a number for each; float64, for they travel in one tensor."""

    uniform_B: Tensor
    temperature_B: Tensor
    top_p_B: Tensor
    top_k_B: Tensor
    min_p_B: Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[SamplingConfig, float]], device: torch.device | str = "cpu") -> SamplingParams:
        values = [(u, s.temperature, s.top_p, float(s.top_k), s.min_p) for s, u in rows]
        return cls(*torch.tensor(values, dtype=torch.float64).T.contiguous().to(device))


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) for the token at `place` of an answer."""
    digest = blake2b(struct.pack("<QQ", seed % (1 << 64), place), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def cuts(sampling: SamplingConfig) -> bool:
    """Whether unlikely tokens are left out, which takes sorting them."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def draw(logits_BV: Tensor, params: SamplingParams, *, cut: bool) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability at the row's temperature (1 for greedy), before the cuts.

    With `cut` false, top-p, top-k and min-p are ignored.
    """
    # A temperature of 0 is taken care of at the end; its log-probabilities are those of temperature 1.
    logits_BV = logits_BV.float() / params.temperature_B.where(params.temperature_B > 0, 1.0).float()[:, None]
    peak_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).exp()
    if cut:
        weights_BV = weights_BV * _kept(weights_BV, params)
    drawn_B = _passed(weights_BV, params.uniform_B)
    token_B = drawn_B.where(params.temperature_B > 0, logits_BV.argmax(-1))
    chosen_B = logits_BV.gather(1, token_B[:, None])[:, 0]
    return token_B, chosen_B - _log_total(logits_BV, peak_B1)


def draw_each(logits_BV: Tensor, params: Sequence[tuple[SamplingConfig, float]]) -> list[tuple[int, float]]:
    """A token for each row with its log-probability. Only rows that need sorting are sorted."""
    result: list[tuple[int, float]] = [(0, 0.0)] * len(params)
    for cut in (False, True):
        mine = [i for i, (sampling, _) in enumerate(params) if cuts(sampling) == cut]
        if mine:
            parameters = SamplingParams.of([params[i] for i in mine], logits_BV.device)
            token_M, logprob_M = draw(logits_BV[mine], parameters, cut=cut)
            for i, token, logprob in zip(mine, token_M.tolist(), logprob_M.tolist(), strict=True):
                result[i] = (token, logprob)
    return result


def _log_total(logits_BV: Tensor, peak_B1: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials."""
    if logits_BV.is_cuda:
        return logits_BV.logsumexp(-1)
    # Block by block: a sum over all at once is rounded differently in another batch.
    total_B = _blocks((logits_BV - peak_B1).exp()).sum(-1, dtype=torch.float64).cumsum(-1)[:, -1]
    return (total_B.log() + peak_B1[:, 0]).float()


def _passed(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The index at which the running sum of the weights passes this part of the total.

    First the block, then the place in it: a running sum over a whole vocabulary takes a
    GPU as long as half the model.
    """
    blocks_BKC = _blocks(weights_BV)
    sums_BK = blocks_BKC.sum(-1, dtype=torch.float64).cumsum(-1)
    target_B1 = uniform_B[:, None] * sums_BK[:, -1:]
    block_B1 = _first_above(sums_BK, target_B1)
    before_B1 = torch.nn.functional.pad(sums_BK, (1, 0)).gather(1, block_B1)
    inside_BC = blocks_BKC.gather(1, block_B1[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    passed_B = (block_B1 * BLOCK + _first_above(inside_BC, target_B1 - before_B1))[:, 0]
    return passed_B.clamp(max=weights_BV.shape[1] - 1)


def _first_above(sums_BK: Tensor, target_B1: Tensor) -> Tensor:
    """Where a running sum passes the target, which rounding may have put a little too high.

    Sums that are not numbers are passed nowhere; the last place is as good as any (see `Request.take`).
    """
    below_B1 = torch.minimum(target_B1, sums_BK[:, -1:] * (1 - 2.0**-50))
    return torch.searchsorted(sums_BK, below_B1, right=True).clamp(max=sums_BK.shape[1] - 1)


def _blocks(weights_BV: Tensor) -> Tensor:
    padded_BV = torch.nn.functional.pad(weights_BV, (0, -weights_BV.shape[1] % BLOCK))
    return padded_BV.view(len(padded_BV), -1, BLOCK)


def _kept(weights_BV: Tensor, params: SamplingParams) -> Tensor:
    """1 for the tokens that may be drawn: by min-p, then the top k, then top-p of what these hold."""
    sorted_BV, order_BV = weights_BV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(weights_BV.shape[-1], device=weights_BV.device)
    top_k_B1 = params.top_k_B.where(params.top_k_B > 0, float(weights_BV.shape[-1]))[:, None]
    sorted_BV = sorted_BV * (rank_V < top_k_B1) * (sorted_BV >= params.min_p_B[:, None] * sorted_BV[:, :1])
    sums_BV = sorted_BV.cumsum(-1, dtype=torch.float64)
    before_BV = sums_BV - sorted_BV
    inside_BV = (before_BV < params.top_p_B[:, None] * sums_BV[:, -1:]) & (sorted_BV > 0)
    kept_BV = torch.zeros_like(weights_BV)
    return kept_BV.scatter_(1, order_BV, inside_BV.to(weights_BV.dtype))
