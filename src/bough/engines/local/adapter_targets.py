"""The layers of a model that an adapter changes, and whether it fits them."""

from __future__ import annotations

from typing import Any

from torch import nn

from bough.errors import InputError
from bough.policy.adapter_weights import AdapterWeights
from bough.policy.policy import Policy


def targets(policy: Policy, weights: AdapterWeights) -> dict[str, Any]:
    """The layers by name; InputError if the model has no such layers, or they cannot be adapted by an engine."""
    decoder = {id(module) for module in policy.decoder.modules()}
    modules = dict(policy.base.named_modules())
    found = {}
    for name, (down_RI, up_OR) in weights.layers.items():
        module = modules.get(name)
        if module is None:
            raise InputError(f"the adapter changes {name}, which {type(policy.base).__name__} does not have")
        sizes = linear_sizes(module)
        if id(module) not in decoder or sizes is None:
            raise InputError(f"the adapter changes {name}; the engine takes adapters on the decoder's linear layers")
        if sizes != (down_RI.shape[1], up_OR.shape[0]) or down_RI.shape[0] != up_OR.shape[1]:
            given = f"{list(down_RI.shape)} and {list(up_OR.shape)}"
            raise InputError(f"the adapter's matrices {given} for {name} do not fit: it maps {sizes[0]} to {sizes[1]}")
        if not (down_RI.isfinite().all() and up_OR.isfinite().all()):
            raise InputError(f"the adapter's weights for {name} are not all finite")
        found[name] = module
    return found


def linear_sizes(module: Any) -> tuple[int, int] | None:
    """The number of inputs and outputs of a linear layer, with or without an adapter; None for any other module."""
    from transformers.pytorch_utils import Conv1D

    base = getattr(module, "base_layer", module)
    if isinstance(base, nn.Linear):
        return base.in_features, base.out_features
    return (base.nx, base.nf) if isinstance(base, Conv1D) else None
