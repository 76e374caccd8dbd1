"""The shape of the adapter that is trained: as the settings say, or as the adapter has it that the run starts from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from bough.config.training import TrainingConfig
from bough.errors import InputError
from bough.policy.adapters import Lora, same_layers
from bough.policy.load import base_and_adapter
from bough.policy.reconcile import larger, read_shape

C = TypeVar("C", bound=TrainingConfig)
MODULE = re.compile(r"[\w.]+")


def lora(config: TrainingConfig) -> Lora:
    """The shape that the settings ask for."""
    names = config.lora_target_modules
    # Adapters of other tools may have a pattern in place of names.
    one = len(names) == 1 and (names[0] == "all-linear" or not MODULE.fullmatch(names[0]))
    return Lora(config.lora_r, config.lora_alpha, config.lora_dropout, names[0] if one else tuple(sorted(names)))


def start_adapter(config: C) -> tuple[Path | None, C]:
    """The adapter to start from, and the settings with what will be its shape: its own where nothing else was asked."""
    start = config.adapter or base_and_adapter(config.model)[1]
    if start is None:
        return None, config
    if not config.use_lora:
        raise InputError(f"--no-use-lora cannot start from the adapter {start}; merge it into the model first")
    shape = read_shape(start)
    own = _settings(shape)
    config = config.model_copy(update={k: v for k, v in own.items() if k not in config.model_fields_set})
    if config.merge_lora:
        return start, config.model_copy(update=_settings(larger(shape, lora(config))))
    if differences := _differences(config, shape):
        raise InputError(
            f"the start adapter {start} has another shape; --merge-lora grows it to fit, "
            "leaving these settings out takes it as it is:", differences,
        )  # fmt: skip
    return start, config.model_copy(update={"lora_target_modules": own["lora_target_modules"]})


def _differences(config: TrainingConfig, shape: Lora) -> list[str]:
    """In what an adapter is not what the settings ask for; its dropout can be changed at any time."""
    wanted = lora(config)
    pairs: list[tuple[str, Any, Any]] = [("lora_r", wanted.r, shape.r), ("lora_alpha", wanted.alpha, shape.alpha)]
    if not same_layers(base_and_adapter(config.model)[0], wanted.targets, shape.targets):
        pairs.append(("lora_target_modules", wanted.targets, shape.targets))
    return [f"{name} is {mine} here and {theirs} there" for name, mine, theirs in pairs if mine != theirs]


def _settings(shape: Lora) -> dict[str, Any]:
    """A shape as the settings that ask for it."""
    targets = [shape.targets] if isinstance(shape.targets, str) else list(shape.targets)
    return {
        "lora_r": shape.r,
        "lora_alpha": shape.alpha,
        "lora_dropout": shape.dropout,
        "lora_target_modules": targets,
    }
