"""The shape of the adapter that is trained: as the settings say, or as the adapter has it that the run starts from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from bough.config.training import LoraConfig, TrainingConfig
from bough.errors import InputError
from bough.policy.adapters import Lora, same_layers
from bough.policy.load import base_and_adapter
from bough.policy.reconcile import larger, read_shape

C = TypeVar("C", bound=TrainingConfig)
MODULE = re.compile(r"[\w.]+")


def lora(config: LoraConfig) -> Lora:
    """The shape that the settings ask for."""
    names = config.target_modules
    # Adapters of other tools may have a pattern in place of names.
    one = len(names) == 1 and (names[0] == "all-linear" or not MODULE.fullmatch(names[0]))
    return Lora(config.r, config.alpha, config.dropout, names[0] if one else tuple(sorted(names)), config.experts)


def start_adapter(config: C, *, may_grow: bool = True) -> tuple[Path | None, C]:
    """The adapter to start from, and the settings with what will be its shape: its own where nothing else was asked.

    `may_grow` says whether the command has --merge-lora.
    """
    start = config.lora.adapter or base_and_adapter(config.model)[1]
    if start is None:
        return None, config
    if not config.lora.enabled:
        raise InputError(f"--no-use-lora cannot start from the adapter {start}; merge it into the model first")
    shape = read_shape(start)
    own = _settings(shape)
    config = _with(config, {k: v for k, v in own.items() if k not in config.lora.model_fields_set})
    if config.lora.merge:
        return start, _with(config, _settings(larger(shape, lora(config.lora))))
    if differences := _differences(config, shape):
        grow = "--merge-lora grows it to fit, " if may_grow else ""
        raise InputError(
            f"the start adapter {start} has another shape; {grow}leaving these settings out takes it as it is:",
            differences,
        )
    return start, _with(config, {"target_modules": own["target_modules"]})


def _with(config: C, values: dict[str, Any]) -> C:
    """The settings with these of the adapter."""
    return config.model_copy(update={"lora": config.lora.model_copy(update=values)})


def _differences(config: TrainingConfig, shape: Lora) -> list[str]:
    """In what an adapter is not what the settings ask for; its dropout can be changed at any time."""
    wanted = lora(config.lora)
    pairs: list[tuple[str, Any, Any]] = [
        ("lora_r", wanted.r, shape.r),
        ("lora_alpha", wanted.alpha, shape.alpha),
        ("lora_experts", wanted.experts, shape.experts),
    ]
    if not same_layers(base_and_adapter(config.model)[0], wanted.targets, shape.targets):
        pairs.append(("lora_target_modules", wanted.targets, shape.targets))
    return [f"{name} is {mine} here and {theirs} there" for name, mine, theirs in pairs if mine != theirs]


def _settings(shape: Lora) -> dict[str, Any]:
    """A shape as the settings that ask for it."""
    targets = [shape.targets] if isinstance(shape.targets, str) else list(shape.targets)
    return {
        "r": shape.r,
        "alpha": shape.alpha,
        "dropout": shape.dropout,
        "target_modules": targets,
        "experts": shape.experts,
    }
