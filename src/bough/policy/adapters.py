"""The adapters of a policy: "actor" is trained, "reference" is frozen and is what the actor is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from bough.disk import read_json
from bough.errors import BoughError, InputError
from bough.models.sizes import file_shapes
from bough.policy.load import load_outline
from bough.policy.reach import expert_parameters, out_of_reach

ACTOR = "actor"
REFERENCE = "reference"
Targets = str | tuple[str, ...]


@dataclass(frozen=True)
class Lora:
    """A new LoRA adapter.

    `targets` are names of modules, a pattern that whole names match, or "all-linear": every
    linear layer of the language model but the head. With `experts`, the experts get one too.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: Targets = "all-linear"
    experts: bool = False


def has_adapter(model: Any) -> bool:
    """Whether a model carries adapters: then only its actor is trained."""
    return hasattr(model, "peft_config")


def add_actor(model: Any, lora: Lora) -> Any:
    """The model with a new actor, which changes nothing until it is trained."""
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    if lora.experts and lora.dropout:
        raise InputError("lora_experts needs lora_dropout 0: experts are adapted as weights, not by their inputs")
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM",
        exclude_modules=out_of_reach(model, all_linear=targets == "all-linear"),
        target_parameters=expert_parameters(model) if lora.experts else None,
    )  # fmt: skip
    try:
        return get_peft_model(model, config, adapter_name=ACTOR)
    except ValueError as error:
        raise InputError(f"lora_target_modules does not fit the model: {error}") from error


def _whole(load: Callable[..., Any]) -> Callable[..., Any]:
    """`load(model, folder, …)`, whose errors about damaged files are InputErrors."""

    @wraps(load)
    def guarded(model: Any, folder: Path, **options: Any) -> Any:
        try:
            return load(model, folder, **options)
        except (BoughError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # peft and safetensors raise errors of many kinds
            if (misfit := str(error).find("size mismatch")) >= 0:
                said = str(error)[misfit:].partition("\n")[0].rstrip(". ")
                raise InputError(f"{folder}: the adapter is not one of this model{_base_of(folder)}: {said}") from error
            said = str(error).partition("\n")[0]
            raise InputError(f"{folder}: the adapter cannot be loaded: {type(error).__name__}: {said}") from error

    return guarded


def _base_of(folder: Path) -> str:
    """The model that an adapter's folder names, as the end of a sentence."""
    try:
        base = read_json(Path(folder) / "adapter_config.json").get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return f" but of {base}" if isinstance(base, str) and base else ""


def check_rank(folder: Path) -> None:
    """InputError where `folder` has no adapter, or one whose configuration asks for larger matrices than it has."""
    about, file = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if not about.is_file():
        raise InputError(f"{folder} contains no adapter: adapter_config.json is missing")
    try:
        config, shapes = read_json(about), file_shapes(file)
    except (OSError, ValueError, SafetensorError):
        return  # peft says what is wrong with it
    downs = {name: shape for name, shape in shapes.items() if ".lora_A" in name or ".lora_embedding_A" in name}
    if not downs or not isinstance(config, dict):
        return
    name, largest = max(downs.items(), key=lambda one: one[1][:1])
    patterns = config.get("rank_pattern")
    ranks = {"r": config.get("r"), **(patterns if isinstance(patterns, dict) else {})}
    for setting, rank in ranks.items():
        if isinstance(rank, int) and rank > largest[0]:
            raise InputError(f"{about}: {setting} is {rank}, but {name} in {file.name} is {list(largest)}")


@_whole
def load_actor(model: Any, folder: Path, *, dropout: float | None = None) -> Any:
    """The model with the adapter in `folder` as its actor, and with another dropout than it had if one is given."""
    from peft import PeftConfig, PeftModel

    check_rank(folder)
    config = PeftConfig.from_pretrained(folder)
    if dropout is not None:
        config.lora_dropout = dropout
    return PeftModel.from_pretrained(model, folder, adapter_name=ACTOR, is_trainable=True, config=config)


@_whole
def load_named(model: Any, folder: Path, *, name: str) -> Any:
    """The model, which may have adapters already, with the adapter in `folder` under a name of its own."""
    from peft import PeftModel

    check_rank(folder)
    if not has_adapter(model):
        return PeftModel.from_pretrained(model, folder, adapter_name=name, is_trainable=True)
    model.load_adapter(str(folder), adapter_name=name, is_trainable=True)
    return model


@_whole
def add_reference(model: Any, folder: Path) -> None:
    """Loads the adapter in `folder` as the reference of a model that has an actor."""
    check_rank(folder)
    model.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)


def same_layers(name: str, left: Targets, right: Targets) -> bool:
    """Whether two ways to name layers mean the same ones of the model `name`."""
    return left == right or _layers(name, left) == _layers(name, right)


def _layers(name: str, targets: Targets) -> set[str]:
    return set(add_actor(load_outline(name), Lora(r=1, targets=targets)).targeted_module_names)


def adapted_layers(model: Any) -> list[Any]:
    """The layers that hold adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)]


@contextmanager
def reference(model: Any, layers: Sequence[Any]) -> Iterator[None]:
    """Within it the model is the reference, without gradients: its adapter of that name, or no adapter at all.

    peft has this too, but walks the whole model for it and marks every weight as frozen and
    back: on a large model a tenth of a second each time, and not for weights that are sharded.
    """
    if not has_adapter(model):
        raise InputError(
            "a policy without an adapter contains no reference; train an adapter, "
            "load the reference as a separate policy, or precompute its log-probabilities"
        )
    name, inside, outside = "_disable_adapters", True, False  # type: tuple[str, Any, Any]
    if REFERENCE in model.peft_config:
        name, inside, outside = "_active_adapter", [REFERENCE], [ACTOR]
    try:
        for layer in layers:
            setattr(layer, name, inside)
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            setattr(layer, name, outside)
