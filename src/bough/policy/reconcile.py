"""An adapter in a larger shape that computes the same: another rank, more layers, another scale.

The rank becomes the larger of the two, the layers the union. What is new in A is freshly
drawn and what is new in B is zero, so the product is unchanged and yet can be trained; B
takes up the difference between the scales (alpha / r).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bough.errors import InputError
from bough.policy.adapters import ACTOR, Lora, Targets, add_actor, check_rank

# What else an adapter may be told; with any of these its weights mean something else.
UNSUPPORTED = (
    *("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out"),
    "target_parameters",
)


def read_shape(folder: Path) -> Lora:
    """The shape of the LoRA adapter in `folder`."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} contains no adapter: adapter_config.json is missing") from None
    except ValueError as error:
        raise InputError(f"{folder}/adapter_config.json is not JSON: {error}") from None
    check_rank(folder)
    if config.get("peft_type") != "LORA":
        raise InputError(f"{folder} is a {config.get('peft_type')} adapter; Bough trains LoRA adapters")
    targets = config["target_modules"]
    names = targets if isinstance(targets, str) else tuple(sorted(targets))
    return Lora(config["r"], config["lora_alpha"], config["lora_dropout"], names, bool(config.get("target_parameters")))


def larger(old: Lora, wanted: Lora) -> Lora:
    """The shape that an adapter of shape `old` is grown to."""
    experts = old.experts or wanted.experts
    return Lora(max(old.r, wanted.r), wanted.alpha, wanted.dropout, _union(old.targets, wanted.targets), experts)


def grow(model: Any, folder: Path, wanted: Lora) -> Any:
    """The model with an actor of the larger shape that computes what the adapter in `folder` computes."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    odd = [name for name in UNSUPPORTED if config.get(name)]
    if odd:
        raise InputError(f"{folder}: an adapter with {', '.join(odd)} cannot be grown; merge it into the model first")
    old = read_shape(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    shape = larger(old, wanted)
    grown = add_actor(model, shape)
    parameters = dict(grown.named_parameters())
    correction = (old.alpha / old.r) / (shape.alpha / shape.r)
    with torch.no_grad():
        for key, tensor in tensors.items():
            name = key.replace(".lora_A.", f".lora_A.{ACTOR}.").replace(".lora_B.", f".lora_B.{ACTOR}.")
            if name not in parameters:
                raise InputError(f"{folder}: the adapter has weights for {key}, which this model does not have")
            if ".lora_A." in key:
                parameters[name][: old.r] = tensor
            else:
                parameters[name][:, : old.r] = tensor * correction
    return grown


def _union(left: Targets, right: Targets) -> Targets:
    if left == right:
        return left
    if isinstance(left, str) or isinstance(right, str):
        return "all-linear"
    return tuple(sorted({*left, *right}))
