"""The tokens that end a reply, as a model's generation config names them."""

from __future__ import annotations

from bough.models.resolve import resolve
from bough.models.sizes import load_config


def end_token_ids(name: str) -> list[int]:
    """All end-of-sequence ids of the model `name`; none where it comes without a configuration.

    There is often more than one: Llama 3 ends a turn with `<|eot_id|>`, a tool call with `<|eom_id|>`.
    """
    from transformers import GenerationConfig

    source = resolve(name)
    for read in (GenerationConfig.from_pretrained, load_config):
        try:
            found = getattr(read(source), "eos_token_id", None)
        except (OSError, ValueError):  # a tokenizer alone is enough to look at data
            continue
        if found is not None:
            return [found] if isinstance(found, int) else [int(one) for one in found]
    return []
