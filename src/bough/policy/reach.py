"""Which parts of a model an adapter reaches: its language model, and on request its experts.

Experts are not linear layers but stacks of matrices in one parameter each, so "all-linear"
passes over them; peft adapts them as parameters by name.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from bough.errors import InputError


def decoder_of(model: Any) -> Any:
    """The transformers model `model` without its head; of a vision-language model, the language model."""
    # Llama 4 does not find its own, and ModernBERT calls its head so.
    found = (model.get_decoder(), model.base_model, getattr(model, "model", None))
    return next(one for one in found if one is not model and hasattr(one, "config"))


def expert_parameters(model: Any) -> list[str]:
    """The names, from the layer down, of the parameters that hold a layer's experts; InputError if there are none."""
    found = set()
    for name, module in decoder_of(model).named_modules():
        if "Expert" in type(module).__name__:
            inside = [one for one, parameter in module.named_parameters() if parameter.dim() == 3]
            found |= {f"{_below_layer(name)}.{one}" for one in inside}
    if not found:
        raise InputError(
            f"lora_experts: {type(model).__name__} ({model.config.model_type}) has no experts an adapter can reach; "
            "it is not a mixture of experts, or its experts are quantized, as those of gpt-oss are in its published "
            "weights (MXFP4); load weights in bfloat16, or leave lora_experts out"
        )
    return sorted(found)


def out_of_reach(model: Any, *, all_linear: bool) -> str | None:
    """A pattern of the names of modules that get no adapter, None where there are none.

    They are what surrounds the language model (a vision tower, a projector) and, of
    `all_linear` layers, those that an adapter would break or not be felt in: that compute more
    than a product (the router of Llama 4), or whose weight is read past their forward pass, as
    a router's (LongCat) and those of Mamba are. Merged, such an adapter would change the model.
    """
    decoder = decoder_of(model)
    names: list[str] = []
    inside = {id(module) for module in decoder.modules()}
    if _has_towers(model, inside):
        names += _outside(model, inside)
    if all_linear:
        for name, module in model.named_modules():
            kind = type(module).__name__
            linear = any(isinstance(one, nn.Linear) for one in module.modules())
            if linear and ("Router" in kind or "GroupedLinear" in kind or name.endswith(".router")):
                names.append(name)
            elif hasattr(module, "A_log") and hasattr(module, "D"):  # Mamba
                names += [f"{name}.{one}" for one in ("dt_proj", "out_proj") if hasattr(module, one)]
    patterns = sorted({re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(name)) for name in names})
    return rf"({'|'.join(patterns)})(\..*)?" if patterns else None


def freeze_surroundings(model: Any) -> None:
    """What surrounds the language model, such as a vision tower, is not trained: no call reaches it."""
    reached = {id(one) for part in (decoder_of(model), model.get_output_embeddings()) for one in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in reached:
            parameter.requires_grad_(False)


def _has_towers(model: Any, inside: set[int]) -> bool:
    """Whether linear layers other than the head stand beside the language model."""
    head = model.get_output_embeddings()
    return any(isinstance(m, nn.Linear) and m is not head and id(m) not in inside for m in model.modules())


def _outside(module: nn.Module, inside: set[int], prefix: str = "") -> list[str]:
    """The largest modules that neither are in the language model nor contain it."""
    names = []
    for name, child in module.named_children():
        if id(child) in inside:
            continue
        if any(id(one) in inside for one in child.modules()):
            names += _outside(child, inside, f"{prefix}{name}.")
        elif name != "lm_head":
            names.append(f"{prefix}{name}")
    return names


def _below_layer(name: str) -> str:
    return re.sub(r"^.*\.\d+\.(?=\D)", "", name)
