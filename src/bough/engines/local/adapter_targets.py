"""The layers of a model that an adapter changes, and whether it fits them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bough.errors import InputError
from bough.policy.adapter_weights import AdapterWeights
from bough.policy.policy import Policy


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
    _check_finite(weights)
    return found


def _check_finite(weights: AdapterWeights) -> None:
    """InputError for the first layer with a weight that is not finite. A GPU is waited for once, not for each layer."""
    finite = [down_RI.isfinite().all() & up_OR.isfinite().all() for down_RI, up_OR in weights.layers.values()]
    for name, good in zip(weights.layers, torch.stack(finite).tolist() if finite else (), strict=True):
        if not good:
            raise InputError(f"the adapter's weights for {name} are not all finite")


def linear_sizes(module: Any) -> tuple[int, int] | None:
    """The number of inputs and outputs of a linear layer, with or without an adapter; None for any other module."""
    from transformers.pytorch_utils import Conv1D

    base = getattr(module, "base_layer", module)
    if isinstance(base, nn.Linear):
        return base.in_features, base.out_features
    return (base.nx, base.nf) if isinstance(base, Conv1D) else None
