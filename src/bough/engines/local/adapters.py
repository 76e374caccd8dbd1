"""LoRA adapters in the engine: by name, each token with that of its episode, and the policy's own, folded.

By name on a model's own layers: only within a pass do they compute so; between passes the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bough.errors import InputError
from bough.policy.adapters import ACTOR, AdapterWeights, LoraPair, adapted_layers, has_adapter
from bough.policy.policy import Policy


class AdaptedLayers:
    """The adapters by name of a policy.

    With `in_order`, a pass reads several episodes, and a layer must be given all of its tokens in order.
    """

    def __init__(self, policy: Policy, *, fold: Fold | None, dtype: torch.dtype, in_order: bool) -> None:
        self.policy, self.fold, self.dtype, self.in_order = policy, fold, dtype, in_order
        self._names: set[str] = set()
        self._layers: dict[str, AdaptedLayer] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def check(self, weights: AdapterWeights) -> None:
        """InputError if the model cannot be computed with such an adapter."""
        for name in targets(self.policy, weights):
            # One of a list within its decoder layer, such as an expert.
            if self.in_order and sum(part.isdigit() for part in name.split(".")) > 1:
                raise InputError(
                    f"the adapter changes {name}, which reads only some of the tokens; use layout='general'"
                )
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
        self._names.add(name)
        for path, layer in self._layers.items():
            layer.pairs.pop(name, None)
            if (pair := weights.layers.get(path)) is not None:
                layer.pairs[name] = self._padded(pair)

    def remove(self, name: str) -> None:
        self.set(name, AdapterWeights({}))
        self._names.remove(name)
        if not self:
            self._layers = {}

    @contextmanager
    def applied(self, plan: Segments | None) -> Iterator[None]:
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

    def _padded(self, pair: LoraPair) -> LoraPair:
        """With a rank that is a multiple of 8: products with odd numbers of columns are left to other code."""
        down_RI, up_OR = (one.to(self.policy.device, self.dtype) for one in pair)
        more = -len(down_RI) % RANKS
        return LoraPair(nn.functional.pad(down_RI, (0, 0, 0, more)), nn.functional.pad(up_OR, (0, more)))

    def _bare(self, layer: Any) -> Callable[[Tensor], Tensor]:
        """The layer without the policy's own adapter, which may be folded into its weights."""
        if self.fold is None:
            return lambda x: layer.base_layer(x)
        weight, base = self.fold.unfolded(layer), layer.base_layer
        return lambda x: nn.functional.linear(x, weight, base.bias)


# The matrices of all adapters on a layer, stacked: each token is computed with its own in two matrix products.
# The products are with all adapters' matrices side by side, and between the two, all numbers but those of a token's
# own adapter are set to zero. That costs as much as one adapter of the ranks' sum, needs no sorting, and which token
# has which adapter is read from a tensor: a recorded CUDA graph stays valid when it changes.

SLOTS, RANKS = 4, 8  # stacks grow by multiples of these


class Slots:
    """The number of each adapter in the stacks. 0 is the policy without any of them.

    `version` changes when a graph that was recorded before no longer computes what it should.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self.capacity = 1
        self.version = 0

    def __bool__(self) -> bool:
        return len(self._numbers) > 1

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def take(self, name: str) -> int:
        """The adapter's number, a new one if it has none."""
        if name not in self._numbers:
            taken = set(self._numbers.values())
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            self.version += not self
            self._numbers[name] = number
            self.capacity = max(self.capacity, 1 + _rounded(number, SLOTS))
        return self._numbers[name]

    def free(self, name: str) -> None:
        del self._numbers[name]
        self.version += not self

    def others(self, slot_T: Tensor) -> Tensor:
        """Which adapters are not a token's own: [T, capacity, 1]."""
        number_S = torch.arange(self.capacity, device=slot_T.device)
        return (slot_T[:, None] != number_S)[..., None]


class Stack:
    """The adapters of layers that have the same input and whose outputs, of `sizes`, are joined.

    `first` is the first slot that it has: 1 where slot 0 has no adapter.
    """

    def __init__(self, sizes: Sequence[int], width: int, *, first: int, dtype: torch.dtype, device: torch.device):
        self._sizes, self._first = list(sizes), first
        self._down_SRI = torch.zeros(0, 0, width, dtype=dtype, device=device)
        self._up_SRO = torch.zeros(0, 0, sum(sizes), dtype=dtype, device=device)

    @torch.inference_mode()  # as the tensors are made in it, and no others may be changed outside of it
    def put(self, slot: int, capacity: int, pairs: Sequence[LoraPair | None]) -> bool:
        """Replaces the adapter in a slot; a layer without a pair has none. True if the tensors are new ones."""
        rank = sum(len(pair.down_RI) for pair in pairs if pair is not None)
        grown = bool(rank or self) and self._make_room(capacity - self._first, rank)
        if not self:
            return False
        slot -= self._first
        self._down_SRI[slot] = 0
        self._up_SRO[slot] = 0
        row = begin = 0
        for size, pair in zip(self._sizes, pairs, strict=True):
            if pair is not None:
                end = begin + len(pair.down_RI)
                self._down_SRI[slot, begin:end] = pair.down_RI
                self._up_SRO[slot, begin:end, row : row + size] = pair.up_OR.T
                begin = end
            row += size
        return grown

    def __bool__(self) -> bool:
        return bool(self._down_SRI.numel())

    def factors(self, x_TI: Tensor, others_TS1: Tensor) -> tuple[Tensor, Tensor]:
        """The two matrices whose product is added to the layers' outputs."""
        slots, rank, _ = self._down_SRI.shape
        low_TX = x_TI.to(self._down_SRI.dtype) @ self._down_SRI.flatten(0, 1).T
        low_TX.view(-1, slots, rank).masked_fill_(others_TS1[:, self._first :], 0.0)
        return low_TX, self._up_SRO.flatten(0, 1)

    def _make_room(self, num_slots: int, rank: int) -> bool:
        old_slots, old_rank, _ = self._down_SRI.shape
        shape = max(num_slots, old_slots), max(_rounded(rank, RANKS), old_rank)
        if shape == (old_slots, old_rank):
            return False
        for name in ("_down_SRI", "_up_SRO"):
            old = getattr(self, name)
            new = old.new_zeros(*shape, old.shape[2])
            new[:old_slots, :old_rank] = old
            setattr(self, name, new)
        return True


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


# Which token of a pass on a model's own layers is computed with which adapter.
# A layer's product with its own weights is made once for all tokens. What the adapters add is computed for one
# adapter after the other; a row has the same bits whatever the others are.

WHOLE = 1 << 60  # more rows than there are


class AdaptedLayer:
    """A layer that some adapter changes: `own` is how the policy computes it.

    Where the policy has an adapter of its own there, `bare` computes the layer without it.
    """

    def __init__(self, module: Any, bare: Callable[[Tensor], Tensor] | None = None) -> None:
        self.module, self.bare = module, bare
        self.own: Callable[[Tensor], Tensor] = module.forward
        self.pairs: dict[str, LoraPair] = {}


class Segment(NamedTuple):
    """The rows of one adapter in a pass."""

    adapter: str
    begin: int
    end: int


class Segments:
    """Tokens that are sorted by adapter; those without one come first."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.num_own = 0 if segments[0].adapter else segments[0].end
        self.total = segments[-1].end

    @classmethod
    def of(cls, adapters: Sequence[str], sizes: Sequence[int]) -> Self | None:
        """For pieces with these adapters, sorted, and numbers of tokens; None if no adapter is among them."""
        if not any(adapters):
            return None
        segments: list[Segment] = []
        for adapter, size in zip(adapters, sizes, strict=True):
            end = segments[-1].end if segments else 0
            if segments and segments[-1].adapter == adapter:
                segments[-1] = segments[-1]._replace(end=end + size)
            else:
                segments.append(Segment(adapter, end, end + size))
        return cls(segments)

    @classmethod
    def whole(cls, adapter: str) -> Self | None:
        """For a pass with one adapter; layers may be given its tokens in any form."""
        return cls([Segment(adapter, 0, WHOLE)]) if adapter else None

    def compute(self, layer: AdaptedLayer, x: Tensor) -> Tensor:
        """The layer's output, for each token with its adapter, which is known by its place in the pass."""
        if self.total != WHOLE and (x.shape[-2] != self.total or x.shape[:-2].numel() != 1):
            given = f"{list(x.shape)} numbers for {self.total} tokens"
            raise InputError(f"a layer with an adapter was given {given}; use layout='general'")
        if layer.bare is None:
            out = layer.own(x)
        elif self.num_own == 0:
            out = layer.bare(x)
        else:  # the policy's own adapter is only for the tokens without another
            own, others = x[..., : self.num_own, :], x[..., self.num_own :, :]
            out = torch.cat([_two_rows(layer.own, own), _two_rows(layer.bare, others)], -2)
        x_TI, out_TO = x.flatten(0, -2), out.flatten(0, -2)
        for adapter, begin, end in self.segments:
            if (pair := layer.pairs.get(adapter)) is not None:
                out_TO[begin:end] += _two_rows(partial(_added, pair), x_TI[begin:end])
        return out_TO.view(out.shape)


def _added(pair: LoraPair, x_TI: Tensor) -> Tensor:
    return linear(linear(x_TI.to(pair.down_RI.dtype), pair.down_RI), pair.up_OR)


def _two_rows(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`compute(x)` with at least two rows: BLAS rounds a single one differently."""
    if x.shape[-2] != 1:
        return compute(x)
    return compute(torch.cat([x, x], -2))[..., :1, :]


# The layers of a model that an adapter changes, and whether it fits them.


def targets(policy: Policy, weights: AdapterWeights) -> dict[str, Any]:
    """The layers by name; InputError if the model has no such layers, or they cannot be adapted by an engine."""
    base, decoder = policy.base, policy.decoder
    # A model with many adapters has many modules: those that are wanted are looked up, not searched for.
    inside = next(name for name, module in base.named_modules() if module is decoder)
    found = {}
    for name, (down_RI, up_OR) in weights.layers.items():
        try:
            module = base.get_submodule(name)
        except AttributeError:
            raise InputError(f"the adapter changes {name}, which {type(base).__name__} does not have") from None
        sizes = linear_sizes(module)
        if not name.startswith(f"{inside}.") or sizes is None:
            raise InputError(f"the adapter changes {name}; the engine takes adapters on the decoder's linear layers")
        if sizes != (down_RI.shape[1], up_OR.shape[0]) or down_RI.shape[0] != up_OR.shape[1]:
            given = f"{list(down_RI.shape)} and {list(up_OR.shape)}"
            raise InputError(f"the adapter's matrices {given} for {name} do not fit: it maps {sizes[0]} to {sizes[1]}")
        found[name] = module
    # A GPU is waited for once, not for each layer.
    finite = [down_RI.isfinite().all() & up_OR.isfinite().all() for down_RI, up_OR in weights.layers.values()]
    for name, good in zip(weights.layers, torch.stack(finite).tolist() if finite else (), strict=True):
        if not good:
            raise InputError(f"the adapter's weights for {name} are not all finite")
    return found


def linear_sizes(module: Any) -> tuple[int, int] | None:
    """The number of inputs and outputs of a linear layer, with or without an adapter; None for any other module."""
    from transformers.pytorch_utils import Conv1D

    base = getattr(module, "base_layer", module)
    if isinstance(base, nn.Linear):
        return base.in_features, base.out_features
    return (base.nx, base.nf) if isinstance(base, Conv1D) else None


# The policy's own LoRA adapter folded into copies of the weights it adapts, for generation alone.
# The copies lie beside the policy's own weights, which stay as they are. Without them an adapter makes a step about a
# fifth slower. `Fold` swaps the folded weights into the model's own layers; `Joined` has the weights of several layers
# as one product, for the decoder of few kernels.


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
