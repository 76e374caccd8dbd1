"""Tiny models are read from the disk once per process; each later load of one is a copy.

Tests load them some thousand times, and a copy takes a quarter of the time. Only what lies in
Bough's own cache is copied: a model in any other folder is read each time.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bough.files import cache_folder
from bough.models.tiny import postpone_scikit_learn

FOLDER = cache_folder() / "models"


def copy_what_was_read() -> None:
    """From now on, in this process and those that are forked from it."""
    postpone_scikit_learn(models=True)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    for kind in (AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig):
        kind.from_pretrained = staticmethod(read_once(kind.from_pretrained))


def read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """`read`, a `from_pretrained`, which copies what it has read of a tiny model with the same options before."""
    earlier: dict[Path, list[tuple[dict[str, Any], Any]]] = {}

    def read_or_copy(*words: Any, **options: Any) -> Any:
        if not is_tiny(words) or torch.is_inference_mode_enabled():  # its tensors can never be trained
            return read(*words, **options)
        asked = comparable(options)
        known = earlier.setdefault(words[0], [])
        found = next((found for before, found in known if before == asked), None)
        if found is None:
            asked = copy.deepcopy(asked)  # a configuration may be changed later
            found = read(*words, **options)
            known.append((asked, found))
        return copy.deepcopy(found)

    return read_or_copy


def is_tiny(words: tuple[Any, ...]) -> bool:
    """Whether these arguments are the folder of a tiny model in the cache."""
    return (
        len(words) == 1
        and isinstance(words[0], Path)
        and words[0].parent == FOLDER
        and words[0].name.startswith("tiny-")
    )


def comparable(options: dict[str, Any]) -> dict[str, Any]:
    """Two configurations are the same if their values are."""
    return {name: vars(value) if name == "config" else value for name, value in options.items()}
