"""A GGUF file as a model: converted once into a plain model folder in the cache, named by its content.

`python -m bough.models.gguf_read GGUF FOLDER` does the conversion, as a program of its own so
that the memory it takes ends with it. Tensors are read one after the other; none is left out, and
none that the model has may be absent.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bough.errors import BoughError, InputError, exception_line
from bough.files import build_once, open_file, read_json, run_module, write_json
from bough.terminal.console import steps

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
    with suppress(OSError), open_file(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
    raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF")


def local_folder(path: Path) -> Path:
    """The model folder of a GGUF file, converted on first use."""
    check_file(path)
    status = path.stat()
    return build_once(f"models/gguf-{_digest(path, status.st_size, status.st_mtime_ns)}-{RECIPE}", partial(build, path))


@cache
def _digest(path: Path, size: int, changed_ns: int) -> str:  # noqa: ARG001  a changed file has another digest
    from bough.models.resolve import file_digest

    return file_digest(path)[:24]


def build(path: Path, folder: Path) -> None:
    """Fills `folder` with the model and its tokenizer. Raises InputError where the file cannot be read."""
    header = read_header(path)
    try:
        model_config(header)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    needed = (4 if _precision(header) == "float32" else 2) * _count(header)
    if (free := shutil.disk_usage(folder).free) < needed * 1.05:
        raise BoughError(
            f"{path.name} needs {needed / 1e9:.1f} GB of disk as a model folder and {folder.parent} has "
            f"{free / 1e9:.1f} GB left; free some space, or let BOUGH_CACHE name a folder on another disk"
        )
    with steps(path.name, 1) as begin:
        begin("convert the model (once)")
        run_converter(path, folder)


def run_converter(path: Path, folder: Path) -> None:
    """Converts in a process of its own. Raises InputError where the file is refused."""
    try:
        run_module("bough.models.gguf_read", str(path), str(folder), HF_HUB_OFFLINE="1")
    except BoughError:
        if (refused := folder / REFUSED).exists():
            raise InputError(f"{path}: {refused.read_text(encoding='utf-8')}") from None
        raise


def convert(path: Path, folder: Path) -> None:
    """Saves the model and its tokenizer, chat template included, into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from bough.models.gguf_tokenizer import ends, load_gguf_tokenizer

    header = read_header(path)
    config = model_config(header)
    if ROPE_FREQUENCIES in header.tensors:
        divisors = _numbers(path, header.tensors[ROPE_FREQUENCIES]).flatten().tolist()
        config.rope_parameters = llama3_positions(divisors, config.rope_parameters["rope_theta"], config.head_dim)
    tokenizer = load_gguf_tokenizer(header, config.max_position_embeddings)
    dtype = getattr(torch, _precision(header))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    fill(model, header, path, dtype)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=ends(header) or None, pad_token_id=tokenizer.pad_token_id
    )
    if not folder.is_dir():  # the process that wanted it has ended, and a later one has removed it
        raise FileNotFoundError(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_source(path, header, folder)


def fill(model: PreTrainedModel, header: Header, path: Path, dtype: torch.dtype) -> None:
    """Gives the model, which has no numbers yet, those of the file."""
    import torch
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    family = {arch.name.lower(): arch for arch in MODEL_ARCH}[header.architecture]
    table = get_tensor_name_map(family, config.num_hidden_layers)
    unread = set(header.tensors) - {ROPE_FREQUENCIES}
    found: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored not in header.tensors:
            raise InputError(f"the file has no tensor {stored or name}, which a {header.architecture} model needs")
        info = header.tensors[stored]
        if info.shape != tuple(parameter.shape):
            raise InputError(f"its tensor {stored} has the shape {info.shape}; it must be {tuple(parameter.shape)}")
        numbers = _numbers(path, info)
        if config.model_type == "llama" and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            # llama.cpp pairs neighbours of a Llama's heads, transformers the two halves of a head.
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            numbers = numbers.reshape(heads, -1, 2, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
        found[name] = torch.from_numpy(numbers).to(dtype)
        unread.discard(stored)
    if unread:
        some = ", ".join(name[:60] for name in sorted(unread)[:3])
        raise InputError(
            f"the file has {len(unread)} tensors that a {header.architecture} model has no place for: {some}"
        )
    model.load_state_dict(found, strict=False, assign=True)
    model.tie_weights()


def _numbers(path: Path, info: TensorInfo) -> np.ndarray:
    """A tensor in float32."""
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize, quant_shape_to_byte_shape

    kind = GGMLQuantizationType(info.type)
    raw = np.fromfile(path, np.uint8, info.num_bytes, offset=info.start)
    numbers: np.ndarray = dequantize(raw.reshape(quant_shape_to_byte_shape(info.shape, kind)), kind)
    return numbers.reshape(info.shape).astype(np.float32)


def _count(header: Header) -> int:
    return sum(math.prod(info.shape) for info in header.tensors.values())


def _precision(header: Header) -> str:
    """The type of the converted model: a file's own, or enough for what it was quantized from."""
    from gguf import GGMLQuantizationType

    # Vectors are float32 in every file.
    kinds = {GGMLQuantizationType(info.type).name for info in header.tensors.values() if len(info.shape) > 1}
    own = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
    if len(kinds) == 1 and (known := own.get(next(iter(kinds)))):
        return known
    return "float32" if _count(header) <= MAX_FLOAT32 else "bfloat16"


# The head of a GGUF file: what it says about the model, and where its tensors are.
# Read strictly, because such files come from anywhere: counts, lengths and offsets are checked against the size of
# the file before anything is allocated for them.

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_COUNT = 1 << 17  # of keys, and of tensors
MAX_DIMENSIONS = 4
MAX_STRING = 1 << 24
STRING, ARRAY = 8, 9
# Numbers by their type in GGUF; 7 is true or false.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """Shape as torch has it (rows first), type, and place in the file."""

    shape: tuple[int, ...]
    type: int
    start: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """Everything but the tensors' numbers."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        found = self.metadata.get("general.architecture")
        return found if isinstance(found, str) else ""

    def key(self, name: str, default: Any = None) -> Any:
        """The value of `ARCHITECTURE.name`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)


def read_header(path: Path) -> Header:
    """The head of a file. Raises InputError for one that is damaged, cut off or not GGUF."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Parser(file, size).header()
    except (OSError, struct.error, UnicodeDecodeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as GGUF: {said}") from None


class _Parser:
    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size = file, size

    def header(self) -> Header:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}; versions {' and '.join(map(str, VERSIONS))} can be read")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        if max(num_tensors, num_keys) > MAX_COUNT:
            raise ValueError(f"it claims to have {num_keys} keys and {num_tensors} tensors")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number("I"))
        infos = []
        for _ in range(num_tensors):
            name, num_dimensions = self._string(), self._number("I")
            if num_dimensions > MAX_DIMENSIONS:
                raise ValueError(f"its tensor {name!r:.60} has {num_dimensions} dimensions")
            shape = tuple(reversed([self._number("Q") for _ in range(num_dimensions)]))
            infos.append((name, shape, self._number("I"), self._number("Q")))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise ValueError(f"its alignment is {alignment!r}")
        start = -(-self.file.tell() // alignment) * alignment
        tensors = {name: self._placed(name, shape, kind, start + offset) for name, shape, kind, offset in infos}
        if len(tensors) < len(infos):
            raise ValueError("two of its tensors have one name")
        for (_, before), (name, info) in pairwise(sorted(tensors.items(), key=lambda one: one[1].start)):
            if info.start < before.start + before.num_bytes:  # a small file would become a model of any size
                raise ValueError(f"its tensor {name!r:.60} overlaps another")
        return Header(metadata, tensors)

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorInfo:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        if kind not in {int(known) for known in GGML_QUANT_SIZES}:
            raise ValueError(f"its tensor {name!r:.60} is of an unknown type ({kind})")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        count = math.prod(shape)
        if not shape or count == 0 or shape[-1] % block:
            raise ValueError(f"its tensor {name!r:.60} has the shape {shape}, which its type cannot have")
        num_bytes = count // block * size
        if start + num_bytes > self.size:
            raise ValueError(
                f"it is cut off: its tensor {name!r:.60} ends at byte {start + num_bytes:,}, the file at {self.size:,}"
            )
        return TensorInfo(shape, kind, start, num_bytes)

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"one of its values is of an unknown type ({kind})")
        kind, count = self._number("I"), self._number("Q")
        if count > self.size - self.file.tell():
            raise ValueError("one of its lists is longer than the file")
        if kind in NUMBERS:
            form = f"<{count}{NUMBERS[kind]}"
            return list(struct.unpack(form, self._take(struct.calcsize(form))))
        if kind != STRING:
            raise ValueError("one of its lists contains lists")
        return [self._string() for _ in range(count)]

    def _string(self) -> str:
        length = self._number("Q")
        if length > MAX_STRING:
            raise ValueError(f"one of its texts claims {length:,} bytes")
        return self._take(length).decode()

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError("it is cut off within its head")
        return self.file.read(count)


# A model's configuration from the head of a GGUF file: the inverse of what `gguf_write.py` writes.
# Everything that the file says is set; transformers' defaults are those of one checkpoint. What would be computed
# differently from llama.cpp is refused.

CLASSES = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
ROPE_FREQUENCIES = "rope_freqs.weight"
# The settings of Llama 3.1's positions that all its models share; only the factor differs.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def model_config(header: Header) -> PretrainedConfig:
    """The configuration. Raises InputError for a model that cannot be read, with the reason."""
    import transformers

    family = header.architecture
    if family not in CLASSES:
        raise InputError(f"the model is of the family {family or 'unknown'!r:.40}; readable: {', '.join(CLASSES)}")
    heads, width, layers = (_whole(header, n) for n in ("attention.head_count", "embedding_length", "block_count"))
    if layers > len(header.tensors):  # transformers makes lists with an entry for each layer
        raise InputError(f"{family}.block_count is {layers:,} and the file has {len(header.tensors)} tensors")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InputError("the file has no token embedding (token_embd.weight); is it a model?")
    if (scaling := header.key("rope.scaling.type", "none")) not in ("none", "linear"):
        raise InputError(f"its positions are scaled in a way that cannot be read ({scaling!r:.40}); readable: linear")
    try:
        rope = {"rope_type": "default", "rope_theta": float(header.key("rope.freq_base", 10000.0))}
        if scaling == "linear":
            rope |= {"rope_type": "linear", "factor": float(header.key("rope.scaling.factor", 1.0))}
        settings: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "intermediate_size": _whole(header, "feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": _whole(header, "attention.head_count_kv", heads),
            "max_position_embeddings": _whole(header, "context_length"),
            "rms_norm_eps": float(header.key("attention.layer_norm_rms_epsilon", 1e-6)),
            "vocab_size": embedding.shape[0],
            "head_dim": _whole(header, "attention.key_length", width // heads),
            "tie_word_embeddings": "output.weight" not in header.tensors,
            "rope_parameters": rope,
        }
        if family == "llama":
            settings["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
            settings["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
        elif family == "qwen2":
            settings["use_sliding_window"] = False
        for name, token in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            settings[f"{name}_token_id"] = header.metadata.get(f"tokenizer.ggml.{token}_token_id")
        config: PretrainedConfig = getattr(transformers, CLASSES[family])(**settings)
    except InputError:
        raise
    except Exception as error:  # transformers checks settings with exceptions of its own
        raise InputError(f"its settings are not those of a model: {exception_line(error, 300)}") from None
    return config


def llama3_positions(frequencies: list[float], theta: float, head_width: int) -> dict[str, Any]:
    """Llama 3.1's positions, which a file has as a divisor for each frequency.

    Raises InputError where the divisors are not those of Llama 3.1's rule.
    """
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": theta, "factor": max(frequencies), **LLAMA3_ROPE}
    config = LlamaConfig(head_dim=head_width, rope_parameters=rope, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    if len(frequencies) != len(plain) or not torch.allclose(plain / scaled, torch.tensor(frequencies), rtol=1e-3):
        raise InputError("its positions are scaled by a rule that cannot be read (rope_freqs); readable: Llama 3.1's")
    return rope


def _whole(header: Header, name: str, default: int | None = None) -> int:
    found = header.key(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= 1 << 31:
        raise InputError(f"{header.architecture}.{name} is {found!r:.60}; it must be a whole number above 0")
    return found


# Which GGUF file a model folder in the cache was made of.

FILE = "gguf_source.json"
# The folder of a converted file: a digest of the file and the version of the conversion.
FOLDER = re.compile(r"gguf-[0-9a-f]{24}-\d+")
# Where a file says which model it is. Not general.base_model: that is what its model was trained from.
ID_KEYS = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
ID = re.compile(r"(?:https://huggingface\.co/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")


@dataclass(frozen=True)
class GGUFSource:
    """The file's name, and the hub id of its model, if it says so."""

    file: str
    hub_id: str | None = None

    @classmethod
    def of(cls, path: Path, header: Header) -> GGUFSource:
        texts = [value for key in ID_KEYS if isinstance(value := header.metadata.get(key), str)]
        return cls(path.name, next((found[1] for text in texts if (found := ID.fullmatch(text.strip()))), None))


def write_source(path: Path, header: Header, folder: Path) -> None:
    """Notes in a model folder that it was made of the file."""
    write_json(folder / FILE, asdict(GGUFSource.of(path, header)))


def gguf_source(name: str) -> GGUFSource | None:
    """The GGUF file that a model's name stands for, as the file or as the folder made of it; None for other models."""
    path = Path(name)
    if path.suffix == ".gguf":
        try:
            return GGUFSource.of(path, read_header(path))
        except (OSError, InputError):  # it is not here any more
            return GGUFSource(path.name)
    if not FOLDER.fullmatch(path.name):
        return None
    try:
        return GGUFSource(**read_json(path / FILE))
    except (OSError, ValueError, TypeError):  # made before the file was noted
        return None


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except InputError as problem:  # left in the folder, for the process that asked
        (Path(sys.argv[2]) / REFUSED).write_text(str(problem), encoding="utf-8")
        sys.exit(f"{problem}")
