"""Adapters by name in the decoder of few kernels: a stack for each of its joined layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bough.engines.local.adapter_targets import targets
from bough.errors import BoughError
from bough.policy.adapter_weights import AdapterWeights

if TYPE_CHECKING:
    from bough.engines.local.fused import FusedDecoder


class HalfFoldedError(BoughError):
    """The policy's own adapter is in some of the weights only, until they are renewed."""


class FusedAdapters:
    """The adapters of a `FusedDecoder`, whose `slots` say where each is."""

    def __init__(self, decoder: FusedDecoder) -> None:
        self.policy, self.slots = decoder.reader.policy, decoder.slots
        names = {id(module): name for name, module in self.policy.base.named_modules()}
        self._joined = [(joined, [names[id(layer)] for layer in joined.layers]) for joined in decoder.joined()]

    def check(self, weights: AdapterWeights) -> None:
        """InputError if the model cannot be computed with such an adapter."""
        targets(self.policy, weights)

    def set(self, name: str, weights: AdapterWeights) -> None:
        """Adds an adapter, or replaces the one of this name."""
        slot = self.slots.take(name)
        try:
            self._keep_apart()
            for joined, names in self._joined:
                pairs = [weights.layers.get(one) for one in names]
                self.slots.version += joined.put(slot, self.slots.capacity, pairs)
        except BaseException:  # such as no memory: layers without a stack would be computed without any adapter
            self.slots.free(name)
            try:
                self._keep_apart()
            except BaseException as again:
                raise HalfFoldedError(f"{type(again).__name__}: {again}") from again
            raise

    def remove(self, name: str) -> None:
        self.set(name, AdapterWeights({}))
        self.slots.free(name)
        self._keep_apart()

    def _keep_apart(self) -> None:
        """The policy's own adapter is in the weights only while it is the only one; graphs are recorded again then."""
        for joined, _ in self._joined:
            joined.keep_apart(bool(self.slots))
