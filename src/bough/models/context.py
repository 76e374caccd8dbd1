"""How many tokens a model can read."""

from __future__ import annotations

from typing import Any

from bough.models.resolve import resolve
from bough.models.sizes import load_config

# Kinds of RoPE scaling whose factor is not in max_position_embeddings yet.
STRETCHING = ("linear", "dynamic", "yarn")


def context_length(name: str) -> int | None:
    """The context of the model `name` in tokens; None where its configuration sets no limit or is not there.

    A tokenizer without a model is enough to look at data; who needs the model says what is wrong with it.
    """
    try:
        config = load_config(resolve(name)).get_text_config()
    except (OSError, ValueError):
        return None
    return context_of(config)


def context_of(config: Any) -> int | None:
    """The same of a text model's configuration: `max_position_embeddings`, or more where RoPE is scaled."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in STRETCHING:
        return length
    original = rope.get("original_max_position_embeddings") or length
    return max(length, int(original * (rope.get("factor") or 1.0)))
