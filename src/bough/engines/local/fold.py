"""A policy's own LoRA adapter folded into copies of the weights it adapts, for generation alone.

The copies lie beside the policy's own weights, which stay as they are. Without them an adapter makes
a step about a fifth slower. `Fold` swaps the folded weights into the model's own layers; `Joined` has
the weights of several layers as one product, for the decoder of few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bough.engines.local.adapters import Stack
from bough.errors import InputError
from bough.policy.adapters import ACTOR, LoraPair, adapted_layers, has_adapter


class Fold:
    """Weights with the actor in them. After the actor has changed, call `renew`."""

    def __init__(self, model: Any) -> None:
        self._layers = list(adapted_layers(model))
        for layer in self._layers:
            if not _plain(layer):
                raise InputError(
                    f"an adapter on {type(layer).__name__} cannot be folded into its weights: only LoRA on linear "
                    "layers that are not quantized can; leave fold out"
                )
        self._own: list[Tensor] = [layer.base_layer.weight.data for layer in self._layers]
        self._folded = [torch.empty_like(weight) for weight in self._own]
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Folds the newest actor, in place: a recorded graph keeps using it."""
        for layer, own, folded in zip(self._layers, self._own, self._folded, strict=True):
            folded.copy_(own.float() + layer.get_delta_weight(ACTOR).float())

    def unfolded(self, layer: Any) -> Tensor:
        """The weight of an adapted layer without the actor."""
        return next(own for one, own in zip(self._layers, self._own, strict=True) if one is layer)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within it the layers use the folded weights and no adapter. It may be entered again inside."""
        before = [(layer._disable_adapters, layer.base_layer.weight.data) for layer in self._layers]
        for layer, folded in zip(self._layers, self._folded, strict=True):
            layer._disable_adapters, layer.base_layer.weight.data = True, folded
        try:
            yield
        finally:
            for layer, (disabled, weight) in zip(self._layers, before, strict=True):
                layer._disable_adapters, layer.base_layer.weight.data = disabled, weight


def pays(model: Any) -> bool:
    """Whether there is an adapter that can be folded without a loss: in 16 bits the weights would round it away."""
    layers = list(adapted_layers(model)) if has_adapter(model) else []
    return bool(layers) and all(_plain(one) and one.base_layer.weight.dtype == torch.float32 for one in layers)


def _plain(layer: Any) -> bool:
    """Whether the adapter is a plain product of two matrices and the weight a plain matrix of its own."""
    from peft.tuners.lora import Linear

    plain = isinstance(layer, Linear) and isinstance(layer.base_layer, nn.Linear)
    return plain and ACTOR not in layer.lora_variant and not layer.lora_bias.get(ACTOR)


class Joined:
    """Linear layers of the same input, as one product. Call `renew` after the policy's own weights have changed.

    As long as all episodes are computed with the policy's own adapter, it is folded into the copies.
    With adapters by name, the copies are the bare weights, and all adapters are in a stack, the policy's
    own too. `seed` is that of its rounding.
    """

    def __init__(self, layers: Sequence[nn.Module], dtype: torch.dtype, *, seed: int = 0) -> None:
        self.layers, self.dtype = layers, dtype
        bases = [base(layer) for layer in layers]
        self.device = bases[0].weight.device
        self._sizes = [one.weight.shape[0] for one in bases]
        width, total = bases[0].weight.shape[1], sum(self._sizes)
        self.weight_OI = torch.empty(total, width, dtype=dtype, device=self.device)
        biased = any(one.bias is not None for one in bases)
        self.bias_O = torch.zeros(total, dtype=dtype, device=self.device) if biased else None
        self.has_actor = any(actor_on(layer) is not None for layer in layers)
        self._stack: Stack | None = None
        self._generator, self._seed = torch.Generator(self.device), seed
        self.folded = self.has_actor
        self.renew()

    @torch.no_grad()
    def put(self, slot: int, capacity: int, pairs: Sequence[LoraPair | None]) -> bool:
        """Replaces the adapter in a slot of the stack. True if that took new tensors."""
        if self._stack is None:
            first = int(not self.has_actor)
            self._stack = Stack(self._sizes, self.weight_OI.shape[1], first=first, dtype=self.dtype, device=self.device)
            if self.has_actor:
                self._stack.put(0, capacity, [actor_on(layer) for layer in self.layers])
        return self._stack.put(slot, capacity, pairs)

    def keep_apart(self, apart: bool) -> None:
        """Whether the policy's own adapter stays out of the weights, because others are used beside it."""
        if self.has_actor and self.folded == apart:
            self.folded = not apart
            self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Copies the newest weights, in place: a recorded graph keeps using them."""
        self._generator.manual_seed(self._seed)  # the same adapter gives the same weights
        row = 0
        for layer, size in zip(self.layers, self._sizes, strict=True):
            bare, rows = base(layer), slice(row, row + size)
            pair = actor_on(layer)
            if self.folded and pair is not None:
                self.weight_OI[rows] = folded(bare.weight, *pair, self.dtype, self._generator)
            else:
                self.weight_OI[rows] = bare.weight
            if self.bias_O is not None and bare.bias is not None:
                self.bias_O[rows] = bare.bias
            row += size
        if self._stack is not None and self.has_actor:
            self._stack.put(0, 1, [actor_on(layer) for layer in self.layers])

    def __call__(self, x_TI: Tensor, others_TS1: Tensor | None = None) -> Tensor:
        """The outputs; `others_TS1` are the adapters that are not a token's own, where there are any by name."""
        out_TO = nn.functional.linear(x_TI, self.weight_OI, self.bias_O)
        if others_TS1 is not None and self._stack:
            out_TO.addmm_(*self._stack.factors(x_TI, others_TS1))
        return out_TO


def base(layer: Any) -> Any:
    """The linear layer without its adapter."""
    return layer.base_layer if hasattr(layer, "lora_A") else layer


def actor_on(layer: Any) -> LoraPair | None:
    """The actor on a layer, None where it has none."""
    if not hasattr(layer, "lora_A") or ACTOR not in layer.lora_A:
        return None
    return LoraPair(layer.lora_A[ACTOR].weight, layer.lora_B[ACTOR].weight * layer.scaling[ACTOR])


# A LoRA adapter added to 16-bit weights, rounded so that nothing of it is lost on average.
# An adapter in training changes most weights by less than half of the distance between two bfloat16 numbers. Rounded
# to the nearest, such a change disappears: the sampler would draw from the policy before the update. Rounded up or
# down at random, with probabilities that keep the mean, what all weights of a row add up to is kept. A weight that
# the adapter leaves alone keeps its bits.

LOST = 16  # bits of a float32 that bfloat16 does not have


def folded(weight_OI: Tensor, down_RI: Tensor, up_OR: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """`weight_OI` as it is computed with in `dtype`, plus the adapter's product."""
    with torch.autocast(weight_OI.device.type, enabled=False):
        sum_OI = torch.addmm(weight_OI.to(dtype).float(), up_OR.float(), down_RI.float())
    return sum_OI if dtype == torch.float32 else rounded_at_random(sum_OI, generator)


def rounded_at_random(values: Tensor, generator: torch.Generator) -> Tensor:
    """The float32 `values` in bfloat16: each one of its two neighbours there, such that the mean is the value."""
    noise = torch.randint(0, 1 << LOST, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    # A bfloat16 is the upper half of a float32. Adding a random lower half carries into it as often as it should.
    bits = values.contiguous().view(torch.int32) + noise
    rounded = ((bits >> LOST) << LOST).view(torch.float32).bfloat16()
    return rounded.masked_fill_(values.isnan(), torch.nan)  # with all bits set, it has been carried over to zero
