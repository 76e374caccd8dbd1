"""A LoRA adapter's matrices by themselves, without a model: what an engine needs to sample with it.

AdapterWeights.read("runs/red/adapter")     # a folder, as peft and Bough save adapters
AdapterWeights.of(policy.model)             # a copy of what a policy has in memory
AdapterWeights.of_each(policy.model, names) # copies of several adapters, by their names
AdapterWeights.of_tensors(tensors, config)  # tensors with peft's names, and the adapter's configuration
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bough.disk import read_json
from bough.errors import InputError
from bough.policy.adapters import ACTOR, adapted_layers

# As peft saves a tensor, and as a model in memory names it (then with the adapter's name).
TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight")
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
VARIANTS = ("use_dora", "use_qalora", "alora_invocation_tokens", "layer_replication")


class LoraPair(NamedTuple):
    """What is added to a layer's output for its input x: x · downᵀ · upᵀ. The scale is in `up_OR`."""

    down_RI: Tensor
    up_OR: Tensor


@dataclass(frozen=True)
class AdapterWeights:
    """The two matrices of each adapted layer, by the layer's name in the base model. Ranks may differ."""

    layers: Mapping[str, LoraPair]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The adapter in a folder."""
        from safetensors.torch import load_file

        folder = Path(folder)
        for file in (CONFIG, TENSORS):
            if not (folder / file).is_file():
                raise InputError(f"{folder} contains no adapter: {file} is missing")
        try:
            config, tensors = read_json(folder / CONFIG), load_file(folder / TENSORS)
        except Exception as error:  # safetensors has errors of its own
            raise InputError(f"{folder}: the adapter cannot be loaded: {str(error).partition(chr(10))[0]}") from error
        try:
            return cls.of_tensors(tensors, config)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from None

    @classmethod
    def of(cls, model: Any, name: str = ACTOR) -> Self:
        """A copy of the adapter `name` of a peft model."""
        return cls.of_each(model, [name])[name]

    @classmethod
    def of_each(cls, model: Any, names: Iterable[str]) -> dict[str, Self]:
        """Copies of several adapters of a peft model, whose modules are walked through once for all of them."""
        layers: dict[str, dict[str, LoraPair]] = {name: {} for name in names}
        for name in layers:
            if name not in getattr(model, "peft_config", {}):
                raise InputError(f"the model has no adapter named {name!r}")
        adapted = {id(layer) for layer in adapted_layers(model)}
        for path, layer in model.get_base_model().named_modules():
            for name, own in layers.items() if id(layer) in adapted else ():
                if (pair := _pair_of(path, layer, name)) is not None:
                    own[path] = pair
        return {name: cls(own) for name, own in layers.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """An adapter from named tensors and the configuration that peft saves with them."""
        if not isinstance(config, Mapping):
            raise InputError("the adapter's configuration is not a JSON object")
        if str(config.get("peft_type")).rpartition(".")[2] != "LORA":
            raise InputError(f"an adapter of type {config.get('peft_type')}; adapters by name are LoRA adapters")
        if odd := [variant for variant in VARIANTS if config.get(variant)]:
            raise InputError(f"an adapter with {', '.join(odd)}; adapters by name are plain LoRA")
        sides: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            found = TENSOR.fullmatch(key)
            if found is None:
                raise InputError(f"{key} is not part of a plain LoRA adapter on linear layers")
            sides.setdefault(found["layer"], {})[found["side"]] = tensor.detach()
        if not sides:
            raise InputError("the adapter has no matrices")
        if single := [layer for layer, side in sides.items() if len(side) < 2]:
            raise InputError(f"{single[0]} has only one of its two matrices")
        pairs = {layer: (side["A"], side["B"]) for layer, side in sides.items()}
        return cls({layer: _scaled(a, b, _scale(layer, len(a), config)) for layer, (a, b) in pairs.items()})


def _scale(layer: str, rank: int, config: Mapping[str, Any]) -> float:
    from peft.utils.other import get_pattern_key

    alphas = config.get("alpha_pattern") or {}
    alpha = alphas.get(get_pattern_key(alphas.keys(), layer), config.get("lora_alpha"))
    if not isinstance(alpha, int | float) or not rank:
        raise InputError(f"{layer} has lora_alpha {alpha!r} and rank {rank}; both must be numbers above 0")
    return alpha / rank**0.5 if config.get("use_rslora") else alpha / rank


def _pair_of(path: str, layer: Any, name: str) -> LoraPair | None:
    """The adapter on one layer, None if it has none there."""
    matrices: Any = getattr(layer, "lora_A", {})
    other = name in getattr(layer, "lora_embedding_A", {}) or name in getattr(layer, "modules_to_save", {})
    if name not in matrices and not other:
        return None
    if other or hasattr(layer, "parameter_name") or name in layer.lora_variant or layer.lora_bias.get(name):
        raise InputError(f"the adapter on {path} is not plain LoRA on a linear layer")
    return _scaled(layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach(), layer.scaling[name])


def _scaled(down_RI: Tensor, up_OR: Tensor, scale: float) -> LoraPair:
    return LoraPair(down_RI.to(torch.float32, copy=True), up_OR.float() * scale)
