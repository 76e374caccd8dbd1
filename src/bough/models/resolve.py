"""From a model's name to what transformers loads: a built-in model, a GGUF file, a local folder, or a hub id."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bough.errors import InputError, did_you_mean
from bough.models import gguf_import, scikit_learn, smollm2, tiny
from bough.models.hub import check_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILT_IN: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2.local_folder,
    "tiny": partial(tiny.local_folder, "llama"),
    "tiny-qwen3": partial(tiny.local_folder, "qwen3"),
    "tiny-gemma": partial(tiny.local_folder, "gemma"),
    "tiny-gpt2": partial(tiny.local_folder, "gpt2"),
}
LOADABLE = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(name: str) -> Path | str:
    """The local folder of `name`, made first if it is a built-in model or a GGUF file, or the hub id that `name` is.

    A built-in name wins over a folder of the same name; write `./tiny` for the folder.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if (path := _local(name)) is not None:
        return gguf_import.local_folder(path) if path.is_file() else path
    if _is_path(name):
        raise InputError(f"there is no folder {name}")
    if HUB_ID.fullmatch(name):
        return name
    hint = did_you_mean(name.lower(), BUILT_IN)
    raise InputError(f"{name!r} is not a local folder, a .gguf file, a hub id (org/name) or a built-in model{hint}")


def check_name(name: str) -> None:
    """InputError where `name` cannot be a model's. Nothing is made, downloaded or imported for it."""
    if name in BUILT_IN:
        return
    path = _local(name)
    if path is not None and path.is_file():
        gguf_import.check_file(path)
    elif path is None:
        resolve(name)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the model `name`. Code that comes with a model is never run."""
    scikit_learn.import_later()
    from transformers import AutoTokenizer

    source = resolve(name)
    check_hub(source)
    try:
        # Without the explicit False, transformers asks on the terminal and waits for an answer.
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"the tokenizer of {name} cannot be loaded: {_reason(source, error)}") from error


def _is_path(name: str) -> bool:
    """Whether a name that is not a folder must be meant as one: never look it up on the hub."""
    first, *rest = Path(name).parts or ("",)
    if name.startswith((".", "/", "~")) or len(rest) > 1:
        return True
    try:
        return len(rest) == 1 and (first == "runs" or Path(first).is_dir())
    except OSError:  # too long
        return False


def _local(name: str) -> Path | None:
    """`name` as the path of a model's folder or GGUF file, None where nothing has that path."""
    try:
        path = Path(name).expanduser()
        if not name or not path.exists():
            return None
    except (OSError, RuntimeError):  # too long, not ours to look into, or the ~ of an unknown user
        return None
    if path.suffix == gguf_import.SUFFIX and path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{name} is a file; name the folder of a model, or a file that ends in {gguf_import.SUFFIX}")
    if not _loadable(path):
        # The folder of a training run has its weights one level down.
        better = f"; did you mean {Path(name) / 'final'}?" if _loadable(path / "final") else ""
        raise InputError(
            f"the folder {name} contains neither a model nor a tokenizer: it has no {' or '.join(LOADABLE)}{better}"
        )
    return path


def _loadable(folder: Path) -> bool:
    return any((folder / file).is_file() for file in LOADABLE)


def _reason(source: Path | str, error: Exception) -> str:
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error.__cause__, LocalEntryNotFoundError):
        return (
            "there is no such folder here, it is not in the local hub cache and the hub cannot be reached; "
            "download it where there is a network, or name a local folder"
        )
    if isinstance(source, Path) and not (source / "tokenizer.json").is_file():
        return "its folder contains no tokenizer.json"
    return str(error).partition("\n")[0] or type(error).__name__
