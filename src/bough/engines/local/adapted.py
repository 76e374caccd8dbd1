"""Adapters by name on a model's own layers: each token of a pass is computed with the adapter of its episode.

Only within a pass do layers compute so; between passes the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bough.engines.local.adapter_plan import AdaptedLayer, Plan
from bough.engines.local.adapter_targets import linear_sizes, targets
from bough.engines.local.fold import Fold
from bough.engines.local.stack import RANKS, Slots, Stack
from bough.errors import InputError
from bough.policy.adapter_weights import AdapterWeights, LoraPair
from bough.policy.adapters import adapted_layers
from bough.policy.policy import Policy


class AdaptedLayers:
    """The adapters by name of a policy.

    With `stacked` they are prepared for plans that are `Stacked`, else for `Segments`. With
    `in_order`, a pass reads several episodes, and a layer must be given all of its tokens in order.
    """

    def __init__(self, policy: Policy, *, fold: Fold | None, dtype: torch.dtype, stacked: bool, in_order: bool) -> None:
        self.policy, self.fold, self.dtype = policy, fold, dtype
        self.stacked, self.in_order = stacked, in_order
        self.slots = Slots()
        self._layers: dict[str, AdaptedLayer] = {}

    def __bool__(self) -> bool:
        return bool(self.slots)

    def check(self, weights: AdapterWeights) -> None:
        """InputError if the model cannot be computed with such an adapter."""
        targets(self.policy, weights)
        if self.in_order and (one := next((name for name in weights.layers if _one_of_several(name)), None)):
            raise InputError(f"the adapter changes {one}, which reads only some of the tokens; use layout='general'")
        for layer in adapted_layers(self.policy.model) if self.policy.has_adapter else ():
            if linear_sizes(layer) is None:
                raise InputError("the policy's own adapter changes more than linear layers; no other can be set")

    def set(self, name: str, weights: AdapterWeights) -> None:
        """Adds an adapter, or replaces the one of this name."""
        if not self._layers and self.policy.has_adapter:
            adapted = {id(layer) for layer in adapted_layers(self.policy.model)}
            for path, module in self.policy.base.named_modules():
                if id(module) in adapted:
                    self._layers[path] = AdaptedLayer(module, self._bare(module))
        for path, module in targets(self.policy, weights).items():
            self._layers.setdefault(path, AdaptedLayer(module))
        self._put(name, weights)

    def remove(self, name: str) -> None:
        self._put(name, AdapterWeights({}))
        self.slots.free(name)
        if not self:
            self._layers = {}

    @contextmanager
    def applied(self, plan: Plan | None) -> Iterator[None]:
        """Within it the layers compute as planned."""
        layers = [] if plan is None else list(self._layers.values())
        # A module may have a function of its own in place of its class's.
        before = [layer.module.__dict__.get("forward") for layer in layers]
        for layer in layers:
            assert plan is not None
            layer.own = layer.module.forward
            layer.module.forward = partial(plan.compute, layer)
        try:
            yield
        finally:
            for layer, forward in zip(layers, before, strict=True):
                if forward is None:
                    del layer.module.forward
                else:
                    layer.module.forward = forward

    def _put(self, name: str, weights: AdapterWeights) -> None:
        slot = self.slots.take(name)
        for path, layer in self._layers.items():
            pair = weights.layers.get(path)
            if self.stacked:
                layer.stack = layer.stack or self._empty_stack(layer.module)
                self.slots.version += layer.stack.put(slot, self.slots.capacity, [pair])
            elif pair is None:
                layer.pairs.pop(name, None)
            else:
                layer.pairs[name] = self._padded(pair)

    def _padded(self, pair: LoraPair) -> LoraPair:
        """With a rank that is a multiple of 8: products with odd numbers of columns are left to other code."""
        down_RI, up_OR = (one.to(self.policy.device, self.dtype) for one in pair)
        more = -len(down_RI) % RANKS
        return LoraPair(nn.functional.pad(down_RI, (0, 0, 0, more)), nn.functional.pad(up_OR, (0, more)))

    def _empty_stack(self, module: Any) -> Stack:
        sizes = linear_sizes(module)
        assert sizes is not None
        return Stack([sizes[1]], sizes[0], first=1, dtype=self.dtype, device=self.policy.device)

    def _bare(self, layer: Any) -> Callable[[Tensor], Tensor]:
        """The layer without the policy's own adapter, which may be folded into its weights."""
        if self.fold is None:
            return lambda x: layer.base_layer(x)
        weight, base = self.fold.unfolded(layer), layer.base_layer
        return lambda x: nn.functional.linear(x, weight, base.bias)


def _one_of_several(name: str) -> bool:
    """Whether a layer is one of a list within its decoder layer, such as an expert."""
    return sum(part.isdigit() for part in name.split(".")) > 1
