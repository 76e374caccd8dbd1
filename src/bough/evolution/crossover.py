"""Two adapters merged into one of the first one's shape.

An adapter adds s·B·A to each weight matrix. What is merged are these products, because equal
products can have different factors. The result is cut to the first adapter's rank by its
singular values, which is the best approximation of that rank.

TIES (Yadav et al., 2306.01708): of each product only the largest entries are kept, per entry the
sign with more weight wins, and the entries with that sign are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from bough.policy.adapter_weights import LoraPair

How = Literal["average", "ties"]
# Share of a product's entries that TIES keeps.
KEPT = 0.2
# More singular vectors than are kept make a random projection find the kept ones exactly enough.
OVERSAMPLING = 16


class DivergedError(ValueError):
    """Products that are too large for their numbers have no singular values."""


def merged(first: Mapping[str, LoraPair], second: Mapping[str, LoraPair], how: How) -> dict[str, LoraPair]:
    """The factors of the merged products for each layer of the first adapter, with the scale in `up_OR`.

    Where the second adapter lacks a layer, its product is 0. DivergedError where a product is not finite.
    """
    found = {}
    for layer, own in first.items():
        other = second.get(layer) or LoraPair(own.down_RI[:1], torch.zeros_like(own.up_OR[:, :1]))
        try:
            found[layer] = (_average if how == "average" else _ties)(own, other)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise DivergedError(f"{layer}: {error}") from error
        if not all(bool(factor.isfinite().all()) for factor in found[layer]):
            raise DivergedError(f"{layer}: the merged product is not finite")
    return found


def _average(own: LoraPair, other: LoraPair) -> LoraPair:
    """Half of each product. Both together have the sum of the ranks, so only a small matrix is decomposed."""
    down, up = torch.cat([own.down_RI, other.down_RI]), torch.cat([own.up_OR, other.up_OR], dim=1) / 2
    left_OQ, inner_left = torch.linalg.qr(up)
    right_IQ, inner_right = torch.linalg.qr(down.T)
    u, s, v = torch.linalg.svd(inner_left @ inner_right.T)
    return _cut(left_OQ @ u, s, right_IQ @ v.T, len(own.down_RI))


def _ties(own: LoraPair, other: LoraPair) -> LoraPair:
    products = torch.stack([_trimmed(pair.up_OR @ pair.down_RI) for pair in (own, other)])
    sign_OI = products.sum(0).sign()
    agree = (products.sign() == sign_OI) & (products != 0)
    merged_OI = (products * agree).sum(0) / agree.sum(0).clamp(min=1)
    rank = len(own.down_RI)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the projection is random; a child must be the same after a resume
        u, s, v = torch.svd_lowrank(merged_OI, q=min(rank + OVERSAMPLING, *merged_OI.shape), niter=4)
    return _cut(u, s, v, rank)


def _trimmed(product_OI: Tensor) -> Tensor:
    """The product with only its largest entries."""
    count = max(1, round(KEPT * product_OI.numel()))
    least = product_OI.abs().flatten().kthvalue(product_OI.numel() - count + 1).values
    return product_OI.where(product_OI.abs() >= least, 0.0)


def _cut(left_OK: Tensor, values_K: Tensor, right_IK: Tensor, rank: int) -> LoraPair:
    """The product of the `rank` largest singular values, shared evenly between both factors; missing ones are 0."""
    roots = values_K[:rank].sqrt()
    missing = rank - len(roots)
    down, up = (right_IK[:, :rank] * roots).T, left_OK[:, :rank] * roots
    return LoraPair(
        torch.nn.functional.pad(down, (0, 0, 0, missing)).contiguous(),
        torch.nn.functional.pad(up, (0, missing)).contiguous(),
    )
