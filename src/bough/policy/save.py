"""A policy on disk: an adapter folder, or a whole model, that plain transformers and peft load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bough.errors import InputError
from bough.files import drafting, put_in_place, write_json
from bough.models.gguf_write import write_gguf
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import ACTOR, adapted_layers, load_actor
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.terminal.console import no_bars


def save_policy(policy: Policy, tokenizer: Any, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Writes the actor, or all weights where there is no adapter, and the tokenizer with its chat template.

    `weights` are `policy.weights()`, which all processes of a sharded policy ask for together.
    """
    save_weights(policy, folder, policy.weights() if weights is None else weights)
    tokenizer.save_pretrained(folder)


def save_weights(policy: Policy, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes the actor, or all weights where there is no adapter, with their config."""
    if policy.has_adapter:
        save_adapter(policy.model, ACTOR, folder, weights)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with no_bars():
            policy.model.save_pretrained(folder, state_dict=weights)


def save_adapter(model: Any, name: str, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes one adapter of a peft model; `weights` are its own, by their names in the model."""
    folder.mkdir(parents=True, exist_ok=True)
    # Left in place: two threads may write adapters of one model at the same time.
    model.create_or_update_model_card = _no_card
    model.save_pretrained(folder, selected_adapters=[name], state_dict=weights)
    # peft puts an adapter that has a name into a folder of that name.
    for file in (folder / name).iterdir():
        file.rename(folder / file.name)
    shutil.rmtree(folder / name)
    _in_order(folder / "adapter_config.json")


def _no_card(folder: str) -> None:
    """peft writes an empty model card with each adapter, which takes longer than a small adapter itself."""


def _in_order(file: Path) -> None:
    """peft writes the adapted layers as a set, in another order in each process; equal adapters make equal files."""
    config = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    write_json(file, config)


# An adapter written into its base model: a plain model, as a folder or as a GGUF file for llama.cpp.


def merge_adapter(adapter: Path, output: Path, *, base: str | None = None, gguf_type: str | None = None) -> str:
    """Writes the merged model to `output`, a folder or a .gguf file; returns the name of the base model."""
    is_gguf = output.suffix == ".gguf"
    if output.exists():
        raise InputError(f"{output} exists; give another {'file' if is_gguf else 'folder'}")
    base = base or base_and_adapter(str(adapter))[0]
    model = load_model(base, dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    whole = merged(load_actor(model, adapter))
    has_tokenizer = (adapter / "tokenizer.json").is_file()
    tokenizer = load_tokenizer(str(adapter) if has_tokenizer else base)
    if is_gguf:
        write_gguf(whole, tokenizer, output, gguf_type or "f16")
    else:
        _write_folder(whole, tokenizer, output)
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
