"""A policy on disk: an adapter folder, or a whole model, that plain transformers and peft load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from bough.disk import write_json
from bough.models.progress import no_bars
from bough.policy.adapters import ACTOR
from bough.policy.policy import Policy


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
