"""An adapter written into its base model: a plain model, as a folder or as a GGUF file for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bough.config.merge import MergeConfig
from bough.disk import drafting, put_in_place
from bough.errors import InputError
from bough.models.gguf_file import write_gguf
from bough.models.progress import no_bars
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import adapted_layers, load_actor
from bough.policy.load import base_and_adapter, load_model


def merge_adapter(config: MergeConfig) -> str:
    """Writes the merged model to `config.output`; returns the name of the base model."""
    if config.output.exists():
        raise InputError(f"{config.output} exists; give another {'file' if config.is_gguf else 'folder'}")
    base = config.model or base_and_adapter(str(config.adapter))[0]
    model = load_model(base, dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    whole = merged(load_actor(model, config.adapter))
    has_tokenizer = (config.adapter / "tokenizer.json").is_file()
    tokenizer = load_tokenizer(str(config.adapter) if has_tokenizer else base)
    if config.is_gguf:
        write_gguf(whole, tokenizer, config.output, config.gguf_type or "f16")
    else:
        _write_folder(whole, tokenizer, config.output)
    return base


def merged(model: Any) -> Any:
    """The model with its adapter in its weights; InputError where two adapters would go into one weight."""
    layers = [layer.get_base_layer() for layer in adapted_layers(model) if hasattr(layer, "get_base_layer")]
    places = [layer.weight.data_ptr() for layer in layers if isinstance(getattr(layer, "weight", None), torch.Tensor)]
    if len({*places}) < len(places):
        raise InputError(
            f"{type(model.get_base_model()).__name__} uses some weights in several layers, each with an adapter of its "
            "own, so the adapter cannot be merged; use the model with its adapter"
        )
    return model.merge_and_unload()


def _write_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    draft = folder.with_name(f".{folder.name}")
    with drafting(draft, folder), no_bars():
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        put_in_place(draft, folder)
