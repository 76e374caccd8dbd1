"""The model as the engine uses it: token ids in, hidden states and logits out, keys and values kept by a cache.

The cache is ours. A model hands each layer's new keys and values to `update` and passes
what comes back on to its attention function, which is ours too and knows what it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from bough.bit_exact import without_onednn
from bough.engines.local.adapted import AdaptedLayers
from bough.engines.local.adapter_plan import Plan
from bough.engines.local.fold import Fold
from bough.engines.local.one_thread import OneThread
from bough.engines.local.packed import PackedLinears, packable
from bough.policy.head import Head
from bough.policy.policy import Policy
from bough.trees.layers import Sight

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 20  # tokens of context where the configuration sets no limit
NAME = "bough_local"  # our attention among those of transformers
# Layers differ in their number alone, and one form is to serve them all; 0 and 1 always get their own.
DYNAMO: dict[str, Any] = {"allow_unspec_int_on_nn_module": True, "recompile_limit": 64}


class KeysValues(Protocol):
    """What `Cache.update` gives to the attention in place of keys."""

    def attend(self, query_BHQD: Tensor, scaling: float, softcap: float | None, sinks_H: Tensor | None) -> Tensor:
        """The outputs [B, Q, H, D] of one layer. A sink takes its part of the softmax and gives nothing."""


class Cache(Protocol):
    """As much of a transformers cache as a decoder needs that is told its positions."""

    def update(self, keys_BGQD: Tensor, values_BGQD: Tensor, layer: int, *_: Any) -> tuple[KeysValues, None]:
        """Stores what is new and gives back how to attend to all there is."""


class Reader:
    """A policy's newest weights, ready to be read with.

    With `compile`, each layer's small operations become a few kernels: a minute once. With
    `fold`, an adapter is folded into a second copy of the weights. Call `renew` when weights have changed.
    `stacked` says how adapters by name are computed (`adapter_plan.py`).
    """

    in_order = True  # a pass reads tokens of several episodes, one after the other

    def __init__(self, policy: Policy, *, compile: bool = False, fold: bool = False, stacked: bool = False) -> None:
        self.policy = policy
        self.context: int = getattr(policy.decoder.config, "max_position_embeddings", None) or UNBOUNDED
        self.vocabulary: int = policy.base.get_input_embeddings().weight.shape[0]
        self.dtype: torch.dtype = policy.autocast or policy.base.dtype
        self._head = Head.of(policy.base)
        self._forms = self._layer_forms(compile)
        self.fold = Fold(policy.model) if fold and policy.has_adapter else None
        self.adapters = AdaptedLayers(policy, fold=self.fold, dtype=self.dtype, stacked=stacked, in_order=self.in_order)

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def renew(self) -> None:
        """Brings copies of the policy's weights up to date."""
        if self.fold:
            self.fold.renew()

    @property
    def attention(self) -> str:
        """Its name among the attention functions of transformers."""
        return self.policy.row_reader.plain_attention

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within it the model is ready to be read; afterwards it is as it was."""
        training = self.policy.training
        if training:  # layers that save memory in training throw caches away
            self.policy.eval()
        self.policy.row_reader.attend_with(self.attention)
        try:
            with (
                self._folded(),
                self._forms_in_use(),
                torch.inference_mode(),
            ):
                yield
        finally:
            if training:
                self.policy.train()

    @contextmanager
    def _forms_in_use(self) -> Iterator[None]:
        """Layers that were compiled for training are not used as such: that was for no cache."""
        before = [(layer, layer._compiled_call_impl) for layer, _ in self._forms]
        for layer, form in self._forms:
            layer._compiled_call_impl = form
        try:
            with torch._dynamo.config.patch(DYNAMO) if self.compiled else nullcontext():
                yield
        finally:
            for layer, form in before:
                layer._compiled_call_impl = form

    def _folded(self) -> AbstractContextManager[None]:
        return self.fold.inside() if self.fold else nullcontext()

    def logits(self, hidden_MD: Tensor) -> Tensor:
        with self.precision():
            return self._head.logits(hidden_MD)

    def precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.policy.autocast, enabled=self.policy.autocast is not None)

    def _layer_forms(self, compile: bool) -> list[tuple[Any, Any]]:
        """Each layer, and how it is called here: compiled, or None for as it is."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.compiled = compile
        layers = [each for each in self.policy.decoder.modules() if isinstance(each, GradientCheckpointingLayer)]
        return [(each, torch.compile(each._call_impl, dynamic=True) if self.compiled else None) for each in layers]


class TokenReader(Reader):
    """Reads tokens of many episodes with our own cache and attention, where every layer keeps keys and values."""

    def __init__(self, policy: Policy, *, compile: bool = False, fold: bool = False, stacked: bool = False) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, _attend)
        config = policy.decoder.config
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kinds = getattr(config, "layer_types", None) or [next(iter(policy.row_reader.sights))] * self.num_layers
        self.sights: list[Sight] = [policy.row_reader.sights[kind] for kind in kinds]
        if compile and len(set(self.sights)) > 1:
            log.warning("layers with different windows are not compiled for generation")
            compile = False
        super().__init__(policy, compile=compile, fold=fold, stacked=stacked)
        self.packed = None if compile else self._pack()

    def renew(self) -> None:
        super().renew()
        if self.packed:
            with self._folded():
                self.packed.renew()

    def _pack(self) -> PackedLinears | None:
        """The model's large linear layers, where packing their weights makes them faster."""
        if self.device.type != "cpu" or self.dtype != torch.float32:
            return None
        layers = packable([*self.policy.decoder.modules(), self._head.layer])
        with self._folded():
            return PackedLinears(layers) if layers else None

    @property
    def attention(self) -> str:
        return NAME

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_size * self.dtype.itemsize

    @contextmanager
    def reading(self) -> Iterator[None]:
        shared = self.device.type == "cpu" and torch.get_num_threads() > 1 and not self.compiled
        with (
            without_onednn(),
            super().reading(),
            self.packed.inside() if self.packed else nullcontext(),
            OneThread() if shared else nullcontext(),
        ):
            yield

    def hidden(self, tokens_BQ: Tensor, positions_BQ: Tensor, cache: Cache, plan: Plan | None = None) -> Tensor:
        """The hidden states [B, Q, D] of tokens whose keys and values go to `cache`, with adapters as planned."""
        with self.precision(), self.adapters.applied(plan):
            output = self.policy.decoder(
                input_ids=tokens_BQ, position_ids=positions_BQ, past_key_values=cache, use_cache=True
            )
        hidden_BQD: Tensor = output.last_hidden_state
        return hidden_BQD


def _attend(
    module: Any,  # noqa: ARG001  as transformers calls it
    query: Tensor,
    key: KeysValues,
    value: None,  # noqa: ARG001
    attention_mask: None,  # noqa: ARG001
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    return key.attend(query, query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux), None
