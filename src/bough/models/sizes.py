"""Whether a model's config fits its weights, asked before anything is allocated.

A config is a few lines of JSON: one digit too many in it asks for terabytes. The headers of
safetensors files say which tensors there are and how large, without reading them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bough.errors import InputError, short_repr
from bough.files import open_file, read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LAYERS = re.compile(r"^(num|n)_(\w+_)?layers?$|^(encoder|decoder)_layers$")
# A model may have weights that its files do not have, such as a head of its own: never more than as many again.
MOST = 2
# As many weights may be packed into one number, or as many tensors be made of one.
PACKED = 32
# Bytes in the header of a safetensors file: enough for 100,000 tensors.
MAX_HEADER = 16 << 20

Shapes = Mapping[str, tuple[int, ...]]


def load_config(source: Path | str) -> Any:
    """The config of a model's folder or hub id. InputError where it names more layers than there are tensors."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    folder = _folder(source)
    # Before transformers reads it: many configs list all their layers.
    if folder is not None and (shapes := weight_shapes(folder)):
        for name, value in _numbers(read_json(folder / CONFIG)):
            if LAYERS.search(name) and value > len(shapes):
                raise InputError(
                    f"{folder / CONFIG}: {name} is {value}, but the weights beside it have {len(shapes)} tensors in all"
                )
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except StrictDataclassError as error:  # its settings do not fit each other
        raise InputError(" ".join(str(error).split())) from error


def outline(source: Path | str, config: Any, build: Callable[[], Any]) -> Any:
    """The model that `build` makes, without memory for its weights. InputError where its files have other sizes."""
    import torch
    from torch.nn.modules.module import register_module_parameter_registration_hook

    folder = _folder(source)
    shapes = weight_shapes(folder) if folder is not None else {}
    if not shapes:
        with torch.device("meta"):
            return build()
    assert folder is not None
    about, made = folder / CONFIG, 0

    def count(_module: Any, _name: str, weight: Any) -> None:
        """InputError as soon as modules have far more tensors than the files, not after a million layers."""
        nonlocal made
        made += weight is not None
        if made > PACKED * len(shapes):
            raise _too_large(about, f"{made} tensors or more", shapes)

    handle = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = build()
    finally:
        handle.remove()
    packed = getattr(config, "quantization_config", None) is not None
    for name, weight in () if packed else model.named_parameters():
        if name in shapes and weight.numel() > math.prod(shapes[name]):
            sizes = f"{list(weight.shape)}, but the weights beside it have {list(shapes[name])}"
            raise InputError(f"{about}: {name} would be {sizes}")
    if (total := model.num_parameters()) > sum(map(math.prod, shapes.values())) * (PACKED if packed else MOST):
        raise _too_large(about, f"{total} weights", shapes)
    return model


def weight_shapes(folder: Path) -> Shapes:
    """The shapes of the tensors in a folder's safetensors files, by name; none where it has no such files."""
    from safetensors import SafetensorError

    try:
        files = set(read_json(folder / INDEX)["weight_map"].values()) if (folder / INDEX).is_file() else {WEIGHTS}
        for file in files:
            if not isinstance(file, str) or Path(file).name != file:
                raise InputError(f"{folder / INDEX} names {short_repr(file)}, which is not a file in its folder")
        return {name: shape for file in sorted(files) for name, shape in file_shapes(folder / file).items()}
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError):
        return {}  # whoever loads the weights says what is wrong with them


def file_shapes(file: Path) -> Shapes:
    """The shapes of the tensors in a safetensors file, by name."""
    from safetensors import safe_open

    with open_file(file) as opened:
        if (size := int.from_bytes(opened.read(8), "little")) > MAX_HEADER:
            raise InputError(f"{file}: its header has {size:,} bytes; at most {MAX_HEADER:,} are read")
    with safe_open(file, framework="np") as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


def _folder(source: Path | str) -> Path | None:
    """Where the files of a model are; None for those of a hub id that are not on this machine."""
    if isinstance(source, Path):
        return source if (source / CONFIG).is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, CONFIG)
    return Path(found).parent if isinstance(found, str) else None


def _too_large(about: Path, size: str, shapes: Shapes) -> InputError:
    numbers = sum(map(math.prod, shapes.values()))
    return InputError(
        f"{about} describes a model of {size}, but the files beside it have {numbers} weights in {len(shapes)} tensors"
    )


def _numbers(settings: Any) -> Iterator[tuple[str, int]]:
    """The whole numbers of a config and of the configs inside it, by their names."""
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value
