"""A cache of transformers that holds one or more episodes, each in a row of its own.

Keys and values of shorter episodes are padded on the left, as `generate` does it; the states of
recurrent and convolutional layers have no length and lie side by side. Keys and values can be cut
back to any token. States cannot: for them a `Snapshot` is taken where one may want to return to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

ALONG = ("keys", "values", "indexer_keys")  # one entry for each token, in the dimension before the last
STATES = ("conv_states", "recurrent_states")  # one for each episode, however long
KNOWN = {
    "DynamicLayer",
    "DynamicIndexedLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
}


@dataclass(frozen=True)
class Snapshot:
    """The part of an episode's cache that cannot be cut back, as it was after `length` tokens."""

    length: int
    cache: Any


class CacheBatch:
    """The cache of episodes with `lengths` tokens; `cache` is the object that the model's forward takes."""

    def __init__(self, cache: Any, lengths: Sequence[int]) -> None:
        self.cache, self.lengths = cache, list(lengths)

    @property
    def known(self) -> bool:
        """Whether what each layer keeps is known here."""
        return all(type(layer).__name__ in KNOWN for layer in self.cache.layers)

    @property
    def num_bytes(self) -> tuple[int, int]:
        """The bytes of what grows with the tokens, and of what does not."""
        along, states = (
            sum(tensor.nbytes for layer in self.cache.layers for tensor in _tensors(layer, names))
            for names in (ALONG, STATES)
        )
        return along, states

    def mask(self, new: int) -> Tensor | None:
        """1 for each stored or `new` token, 0 for padding; None if there is no padding."""
        most = max(self.lengths)
        along = [tensor for layer in self.cache.layers for tensor in _tensors(layer, ALONG)]
        if not along or min(self.lengths) == most:
            return None
        device = along[0].device
        first_B1 = most - torch.tensor(self.lengths, device=device)[:, None]
        return (torch.arange(most + new, device=device) >= first_B1).long()

    def copy(self) -> CacheBatch:
        """The same with states of its own: models change them in place, unlike keys and values."""
        return CacheBatch(_mapped([self.cache], lambda x: x[0], lambda x: x[0].clone()), self.lengths)

    def snapshot(self) -> Snapshot:
        """What is needed to return here later; of one episode."""
        (length,) = self.lengths
        return Snapshot(length, _mapped([self.cache], lambda _: None, lambda x: x[0].clone()))

    def cropped(self, length: int, snapshot: Snapshot | None = None) -> CacheBatch:
        """One episode cut back to `length` tokens; with states, by a snapshot that was taken there."""
        both = [self.cache] if snapshot is None else [self.cache, snapshot.cache]
        return CacheBatch(_mapped(both, lambda x: x[0][..., :length, :], lambda x: x[-1].clone()), [length])

    def selected(self, rows: Sequence[int]) -> CacheBatch:
        """Some of the episodes, in this order, without padding that none of them needs."""
        lengths = [self.lengths[row] for row in rows]
        along = [tensor for layer in self.cache.layers for tensor in _tensors(layer, ALONG)]
        index = torch.tensor(rows, device=along[0].device) if along else torch.tensor(rows)
        skipped = max(self.lengths) - max(lengths)

        def some(tensors: list[Tensor]) -> Tensor:
            return tensors[0].index_select(0, index.to(tensors[0].device))

        return CacheBatch(_mapped([self.cache], lambda x: some(x)[..., skipped:, :], some), lengths)

    @classmethod
    def joined(cls, batches: Sequence[CacheBatch]) -> CacheBatch:
        """All episodes of several batches in one, in order. The batches are used up."""
        if len(batches) == 1:
            return batches[0]
        most = max(length for batch in batches for length in batch.lengths)
        missing = [most - max(batch.lengths) for batch in batches]

        def aligned(tensors: list[Tensor]) -> Tensor:
            return torch.cat([pad(one, (0, 0, gap, 0)) for one, gap in zip(tensors, missing, strict=True)])

        cache = _mapped([batch.cache for batch in batches], aligned, torch.cat)
        return cls(cache, [length for batch in batches for length in batch.lengths])


Change = Callable[[list[Tensor]], Tensor | None]


def _mapped(caches: Sequence[Any], along: Change, states: Change) -> Any:
    """A cache like the first whose tensors are made of those of all of them."""
    new = copy(caches[0])
    new.layers = []
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        layer = copy(layers[0])
        for name, value in vars(layers[0]).items():
            change = along if name in ALONG else states if name in STATES else None
            values = [getattr(one, name) for one in layers]
            if isinstance(value, dict):
                pick = partial(_changed, change)
                setattr(layer, name, {key: pick([one[key] for one in values]) for key in value})
            elif change is not None:
                setattr(layer, name, _changed(change, values))
        new.layers.append(layer)
    return new


def _changed(change: Change | None, values: list[Any]) -> Any:
    """Tensors are combined; other values are the same in all. Layers that need no cache have no tensors."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return change(tensors) if change is not None and tensors else values[0]


def _tensors(layer: Any, names: Sequence[str]) -> list[Tensor]:
    values = [value for name in names if (value := getattr(layer, name, None)) is not None]
    flat = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    return [one for one in flat if isinstance(one, Tensor)]
