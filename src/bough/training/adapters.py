"""The adapters of a policy: "actor" is trained, "reference" stands still and is what the actor is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bough.errors import InputError

ACTOR = "actor"
REFERENCE = "reference"


@dataclass(frozen=True)
class Lora:
    """A new LoRA adapter. `targets` are names of modules, or "all-linear": every linear layer but the head."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: str | tuple[str, ...] = "all-linear"


def add_actor(model: Any, lora: Lora) -> Any:
    """The model with a new actor, which changes nothing until it is trained."""
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config, adapter_name=ACTOR)


def load_actor(model: Any, folder: Path) -> Any:
    """The model with the adapter in `folder` as its actor."""
    from peft import PeftModel

    if not (folder / "adapter_config.json").is_file():
        raise InputError(f"{folder} holds no adapter: adapter_config.json is missing")
    return PeftModel.from_pretrained(model, folder, adapter_name=ACTOR, is_trainable=True)


@contextmanager
def reference(model: Any) -> Iterator[None]:
    """Within it the model is the reference, without gradients: its adapter of that name, or no adapter at all."""
    if not hasattr(model, "peft_config"):
        raise InputError(
            "a policy that is trained in full holds no reference; train an adapter, "
            "load the reference as a policy of its own, or compute its log-probabilities beforehand"
        )
    with torch.no_grad():
        if REFERENCE not in model.peft_config:
            with model.disable_adapter():
                yield
            return
        model.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield
        finally:
            model.set_adapter(ACTOR)
