"""Which attention functions a model is computed with: one for plain rows, one for trees."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from bough.errors import InputError
from bough.trees.attend import flex_tree_attention, sdpa_tree_attention
from bough.trees.mixers import known_mixers

Attention = Literal["auto", "flex", "sdpa"]
FLEX, SDPA = "bough_flex", "bough_sdpa"  # our names for them among the attention functions of transformers


def attentions(model: Any, wanted: Attention, device: torch.device) -> tuple[str, str]:
    """The names under which transformers knows the attention for plain rows and for trees."""
    from transformers import AttentionInterface

    AttentionInterface.register(FLEX, flex_tree_attention)
    AttentionInterface.register(SDPA, sdpa_tree_attention)
    # SDPA leaves out the capping of scores (Gemma 2) silently.
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    plain = "sdpa" if model._supports_sdpa and not capped else "eager"
    # Hybrid models call their attention through the same interface, whether or not they say so.
    supports_flex = model._supports_flex_attn or (model._supports_sdpa and bool(known_mixers(model)))
    if wanted == "flex" and not supports_flex:
        raise InputError(f"{type(model).__name__} does not support FlexAttention; choose attention='sdpa'")
    flex = wanted == "flex" or (wanted == "auto" and device.type == "cuda" and supports_flex)
    if flex:
        return plain, FLEX
    return plain, SDPA if plain == "sdpa" and device.type == "cpu" else plain


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within it nothing is compiled: for a handful of tokens that would take a minute."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield
