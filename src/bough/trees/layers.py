"""What a model's layers look at, read off the model: which masks it needs, and whether it can branch."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from bough.trees.mixers import known_mixers, unknown_convolutions

# What a mask over positions can express. GPT-Neo's "local" layers look back along the row instead.
EXPRESSIBLE = {"full_attention", "sliding_attention", "chunked_attention", "global"}
# Layers with a mixer; a hybrid layer has attention as well.
STATEFUL = {"conv", "linear_attention", "hybrid"}
POINTWISE = {"mlp", "moe"}  # look at no other token


@dataclass(frozen=True)
class Sight:
    """How far back a layer looks along the path from the root; None is all the way.

    `window` counts positions back from the token, itself included; `chunk` cuts the path
    into pieces of that size and looks back to the start of the token's own piece.
    """

    window: int | None = None
    chunk: int | None = None

    def since(self, position_L: Tensor) -> Tensor | None:
        """The earliest position that each token sees, or None where all see everything."""
        if self.window is not None:
            return position_L - (self.window - 1)
        if self.chunk is not None:
            return position_L // self.chunk * self.chunk
        return None


def layer_sights(decoder: nn.Module) -> dict[str, Sight]:
    """The kinds of attention layers of a decoder and what each sees."""
    config: Any = decoder.config
    # A config may name a window that its model never looks at.
    slides = hasattr(_code(decoder), "create_sliding_window_causal_mask")
    window = getattr(config, "sliding_window", None) if slides else None
    sights = {
        "full_attention": Sight(),
        "sliding_attention": Sight(window=window),
        "chunked_attention": Sight(chunk=getattr(config, "attention_chunk_size", None)),
    }
    all_alike = ["full_attention" if window is None else "sliding_attention"]  # Mistral names no types
    kinds = set(getattr(config, "layer_types", None) or all_alike)
    if "hybrid" in kinds:
        kinds.add("full_attention")
    return {kind: sights[kind] for kind in sorted(kinds - STATEFUL - POINTWISE)}


def length_matters(config: Any) -> bool:
    """Whether the rotary frequencies depend on the longest sequence of the row."""
    rope = getattr(config, "rope_parameters", None) or {}
    per_kind = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return any(parameters.get("rope_type") in ("dynamic", "longrope") for parameters in per_kind)


def branching_obstacle(decoder: nn.Module) -> str | None:
    """Why the decoder cannot read a tree, or None if it can.

    A tree needs layers that look at other tokens through attention or a known mixer only,
    positions that come from `position_ids`, and a mask that is used as it is given.
    """
    config: Any = decoder.config
    layer_types = [*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())]
    mixers = known_mixers(decoder)
    num_stateful = sum(kind in STATEFUL for kind in layer_types)
    foreign = set(layer_types) - EXPRESSIBLE - POINTWISE - (STATEFUL if len(mixers) == num_stateful else set())
    if foreign:
        return f"it has layers of kind {', '.join(sorted(foreign))}"
    if unknown_convolutions(decoder) or (getattr(decoder, "_is_stateful", False) and not mixers):
        return "its layers carry state along the sequence"
    if mixers and not layer_sights(decoder):
        return None  # without attention, a token's place is nowhere used
    if getattr(config, "alibi", False) or "position_ids" not in inspect.signature(decoder.forward).parameters:
        return "its positions do not come from position ids"
    if length_matters(config):
        return "its rotary frequencies depend on the length of the row"
    if not hasattr(_code(decoder), "create_causal_mask"):
        return "it makes its own attention mask"
    return None


def _code(decoder: nn.Module) -> ModuleType:
    return sys.modules[type(decoder).__module__]
