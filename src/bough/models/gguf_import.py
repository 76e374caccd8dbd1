"""A GGUF file as a model: converted once into a plain model folder in the cache, named by its content.

`python -m bough.models.gguf_import GGUF FOLDER` does the conversion, as a program of its own so
that the memory it takes ends with it. Tensors are read one after the other; none is left out, and
none that the model has may be absent.
"""

from __future__ import annotations

import math
import shutil
import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.cache import build_once
from bough.errors import BoughError, InputError
from bough.models.gguf_header import Header, TensorInfo, is_gguf, read_header
from bough.models.gguf_source import write_source
from bough.models.progress import steps
from bough.wheels import run_module

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

SUFFIX = ".gguf"
RECIPE = 1  # Raise it when the conversion saves something else, so that no old folder is used.
# Quantized weights become float32 up to this many parameters, and bfloat16, which most were made from, above.
MAX_FLOAT32 = 10**9
REFUSED = "refused.txt"


def check_file(path: Path) -> None:
    """InputError where a file is not GGUF. Only its first bytes are read."""
    if not is_gguf(path):
        raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF")


def local_folder(path: Path) -> Path:
    """The model folder of a GGUF file, converted on first use."""
    check_file(path)
    status = path.stat()
    return build_once(f"models/gguf-{_digest(path, status.st_size, status.st_mtime_ns)}-{RECIPE}", partial(build, path))


@cache
def _digest(path: Path, size: int, changed_ns: int) -> str:  # noqa: ARG001  a changed file has another digest
    from bough.models.digest import file_digest

    return file_digest(path)[:24]


def build(path: Path, folder: Path) -> None:
    """Fills `folder` with the model and its tokenizer. Raises InputError where the file cannot be read."""
    from bough.models.gguf_config import model_config

    with _about(path):
        header = read_header(path)
        model_config(header)
    needed = sum(math.prod(info.shape) for info in header.tensors.values()) * _bytes_each(header)
    if (free := shutil.disk_usage(folder).free) < needed * 1.05:
        raise BoughError(
            f"{path.name} needs {needed / 1e9:.1f} GB of disk as a model folder and {folder.parent} has "
            f"{free / 1e9:.1f} GB left; free some space, or let BOUGH_CACHE name a folder on another disk"
        )
    with steps(path.name, 1) as begin:
        begin("convert the model (once)")
        try:
            run_module("bough.models.gguf_import", str(path), str(folder), HF_HUB_OFFLINE="1")
        except BoughError:
            if (refused := folder / REFUSED).exists():
                raise InputError(f"{path}: {refused.read_text(encoding='utf-8')}") from None
            raise


class _about:  # noqa: N801  reads as a statement
    """Puts the file's name before what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InputError) and str(self.path) not in str(error):
            raise InputError(f"{self.path}: {error}") from None


def convert(path: Path, folder: Path) -> None:
    """Saves the model and its tokenizer, chat template included, into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from bough.models.gguf_config import ROPE_FREQUENCIES, llama3_positions, model_config
    from bough.models.gguf_tokenizer import check_merges, ends, load_gguf_tokenizer

    header = read_header(path)
    config = model_config(header)
    if ROPE_FREQUENCIES in header.tensors:
        divisors = _numbers(path, header.tensors[ROPE_FREQUENCIES]).flatten().tolist()
        config.rope_parameters = llama3_positions(divisors, config.rope_parameters["rope_theta"], config.head_dim)
    tokenizer = load_gguf_tokenizer(header, str(path.parent), path.name, config.max_position_embeddings)
    dtype = {4: torch.float32, 2: torch.float16 if _kinds(header) == {"F16"} else torch.bfloat16}[_bytes_each(header)]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    fill(model, header, path, dtype)
    end_ids = ends(header)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=end_ids or None, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    check_merges(header, folder)
    write_source(path, header, folder)


def fill(model: PreTrainedModel, header: Header, path: Path, dtype: torch.dtype) -> None:
    """Gives the model, which has no numbers yet, those of the file."""
    import torch
    from gguf import MODEL_ARCH, get_tensor_name_map

    family = {arch.name.lower(): arch for arch in MODEL_ARCH}[header.architecture]
    table = get_tensor_name_map(family, model.config.num_hidden_layers)
    unread = set(header.tensors) - {"rope_freqs.weight"}
    found: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored not in header.tensors:
            raise InputError(f"the file has no tensor {stored or name}, which a {header.architecture} model needs")
        info = header.tensors[stored]
        if info.shape != tuple(parameter.shape):
            raise InputError(f"its tensor {stored} has the shape {info.shape}; it must be {tuple(parameter.shape)}")
        found[name] = torch.from_numpy(_as_model(name, _numbers(path, info), model.config)).to(dtype)
        unread.discard(stored)
    if unread:
        raise InputError(f"the file has tensors that a {header.architecture} model has no place for: {_some(unread)}")
    model.load_state_dict(found, strict=False, assign=True)
    model.tie_weights()


def _as_model(name: str, numbers: np.ndarray, config: PretrainedConfig) -> np.ndarray:
    """Numbers as transformers has them: llama.cpp pairs neighbours of a Llama's heads, and adds 1 to Gemma's norms."""
    if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        rest = numbers.shape[1:]
        return numbers.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(numbers.shape)
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return numbers - 1
    return numbers


def _numbers(path: Path, info: TensorInfo) -> np.ndarray:
    """A tensor in float32."""
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize, quant_shape_to_byte_shape

    kind = GGMLQuantizationType(info.type)
    raw = np.fromfile(path, np.uint8, info.num_bytes, offset=info.start)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        typed = raw.view(np.float32 if kind == GGMLQuantizationType.F32 else np.float16).reshape(info.shape)
        return typed.astype(np.float32)
    numbers: np.ndarray = dequantize(raw.reshape(quant_shape_to_byte_shape(info.shape, kind)), kind)
    return numbers.reshape(info.shape).astype(np.float32)


def _kinds(header: Header) -> set[str]:
    """The types of the matrices; vectors are float32 in every file."""
    from gguf import GGMLQuantizationType

    return {GGMLQuantizationType(info.type).name for info in header.tensors.values() if len(info.shape) > 1}


def _bytes_each(header: Header) -> int:
    """The size of a number of the converted model: a file's own precision, or enough for what it was quantized from."""
    if _kinds(header) in ({"F16"}, {"BF16"}):
        return 2
    count = sum(math.prod(info.shape) for info in header.tensors.values())
    return 4 if _kinds(header) == {"F32"} or count <= MAX_FLOAT32 else 2


def _some(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(name[:60] for name in listed[:3]) + more


def main(path: Path, folder: Path) -> None:
    """The program. What is wrong with the file is left in `folder`, for the process that asked."""
    try:
        convert(path, folder)
    except InputError as problem:
        (folder / REFUSED).write_text(str(problem), encoding="utf-8")
        sys.exit(f"{problem}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
