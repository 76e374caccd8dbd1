"""The layers of a policy's decoder, and how they are computed.

Compiled, a layer's small operations become a few kernels. Recorded, whole rows are played back as CUDA graphs.
Recomputed (gradient checkpointing), the backward pass computes activations again instead of keeping them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bough.errors import InputError
from bough.policy.recorded import uses_dropout
from bough.policy.routing import Routers
from bough.policy.row_reader import RowReader
from bough.policy.shard import is_sharded

log = logging.getLogger(__name__)

RECOMPILE_LIMIT = 64


class Layers:
    """The decoder layers that `row_reader` reads rows with; `routers` if they route tokens to experts."""

    compiled = False

    def __init__(self, row_reader: RowReader, routers: Routers | None) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.row_reader, self.routers = row_reader, routers
        decoder: nn.Module = row_reader.decoder
        self._modules = [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules)

    @property
    def base(self) -> Any:
        """The transformers model that the layers are in, with its adapters' layers in place."""
        return self.row_reader.base

    def compile(self) -> None:
        """From now on all layers of a kind share one compiled form, for rows of any length."""
        # With and without a gradient, with and without the adapter, for each kind of attention: more forms than
        # torch makes by itself, and a form too many would be computed without its kernels.
        torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
        for layer in self:
            layer.compile(dynamic=True)
        self.compiled = True

    def uncompile(self, failure: str) -> None:
        """From now on layers are computed as they are, because of this failure."""
        log.warning("The layers cannot be compiled (%s): the run goes on without --compile.", failure)
        for layer in self:
            layer._compiled_call_impl = None
        if self.row_reader.recorded:
            self.row_reader.recorded.drop()
        self.compiled = False

    @property
    def recomputed(self) -> bool:
        """Whether the backward pass computes activations again."""
        return bool(self.base.is_gradient_checkpointing)

    @property
    def can_recompute(self) -> bool:
        """Whether activations are kept for the backward pass, and could be computed again instead."""
        return self.base.supports_gradient_checkpointing and bool(self._modules) and not self.recomputed

    def recompute(self) -> None:
        """From now on the backward pass computes activations again (gradient checkpointing), without CUDA graphs."""
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.row_reader.recorded = None

    def record(self) -> None:
        """From now on rows are read by CUDA graphs; InputError where they cannot be."""
        if found := self.not_recordable():
            raise InputError(f"--cuda-graphs cannot record this model: {', '.join(found)}")
        self.row_reader.record()

    def not_recordable(self) -> list[str]:
        """Why rows cannot be read by CUDA graphs; nothing if they can."""
        hindrances = {
            "it does not use FlexAttention": not self.row_reader.flex or bool(self.row_reader.obstacle),
            "its layers carry state": self.row_reader.carries_state,
            "it is sharded (--shard)": is_sharded(self),
            "it routes tokens to experts": self.routers is not None,
            "it recomputes activations (--gradient-checkpointing)": self.recomputed,
            "its weights are quantized (--qlora)": getattr(self.base, "is_quantized", False),
            "it has dropout (--lora-dropout, or the model's own)": uses_dropout(self.base),
        }
        return [reason for reason, holds in hindrances.items() if holds]
