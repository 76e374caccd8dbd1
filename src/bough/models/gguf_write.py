"""A model as one GGUF file, which llama.cpp and what is built on it run.

Families are written only where a file was read back and computed the same; everything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf import (
    GGML_QUANT_VERSION,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    get_tensor_name_map,
    quant_shape_to_byte_shape,
    quantize,
)

from bough.errors import InputError
from bough.files import drafting, sync
from bough.models.gguf_tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


FAMILIES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}
TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
Q8_0_BLOCK = 32
LARGEST_F16 = float(np.finfo(np.float16).max)


def write_gguf(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, type_name: str) -> None:
    """Writes the whole file or none. Matrices are of the type `type_name`, vectors always float32."""
    matrix_type, file_type = TYPES[type_name]
    vocabulary = Vocabulary(tokenizer, num_rows=model.get_input_embeddings().weight.shape[0])
    problems = [*_problems(model, matrix_type), *vocabulary.problems()]
    if problems:
        raise InputError("the model cannot be written as GGUF:", problems)
    draft = path.with_name(f".{path.name}")
    with drafting(draft, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = GGUFWriter(draft, model.config.model_type)
        writer.add_type("model")
        writer.add_name(path.stem)
        writer.add_file_type(file_type)
        writer.add_quantization_version(GGML_QUANT_VERSION)
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_vocab_size(vocabulary.num_rows)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        vocabulary.add_to(writer)
        _write(writer, model, matrix_type)
        sync(draft)
        draft.rename(path)
        sync(path.parent)


def _problems(model: PreTrainedModel, matrix_type: GGMLQuantizationType) -> Iterator[str]:
    """What llama.cpp would compute otherwise, or has no place for."""
    config = model.config
    if config.model_type not in FAMILIES:
        yield f"the model is of the family {config.model_type}; allowed: {', '.join(FAMILIES)}"
        return
    if (rope := config.rope_parameters.get("rope_type", "default")) != "default":
        yield f"its positions are scaled (rope_type {rope}); allowed: default"
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        yield "only a part of each head is rotated (partial_rotary_factor)"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        yield "some layers attend within a sliding window"
    if config.hidden_act != "silu":
        yield f"its activation is {config.hidden_act}; allowed: silu"
    names = _names(model)
    for name, tensor in _tensors(model):
        if names(name) is None or (name.endswith(".bias") and config.model_type != "qwen2"):
            yield f"GGUF has no place for its {name}"
        elif _type_of(tensor, matrix_type) == GGMLQuantizationType.F16 and tensor.abs().max() > LARGEST_F16:
            yield f"{name} contains numbers outside the range of f16; choose bf16 or f32"


def _write(writer: GGUFWriter, model: PreTrainedModel, matrix_type: GGMLQuantizationType) -> None:
    """The list of tensors, then one tensor after the other, so that no second model is in memory."""
    names = _names(model)
    for name, tensor in _tensors(model):
        kind = _type_of(tensor, matrix_type)
        byte_shape = quant_shape_to_byte_shape(tuple(tensor.shape), kind)
        writer.add_tensor_info(names(name), byte_shape, np.dtype(np.uint8), math.prod(byte_shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in _tensors(model):
        numbers = tensor.detach().float().cpu().numpy()
        if model.config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp rotates neighbours of a Llama's heads, transformers the two halves of a head.
            heads = model.config.num_attention_heads if "q_proj" in name else model.config.num_key_value_heads
            numbers = numbers.reshape(heads, 2, -1, numbers.shape[1]).swapaxes(1, 2).reshape(numbers.shape)
        writer.write_tensor_data(quantize(numbers, _type_of(tensor, matrix_type)))
    writer.close()


def _names(model: PreTrainedModel) -> Callable[[str], str | None]:
    """A function from a tensor's name to its name in GGUF, None where it has none."""
    table = get_tensor_name_map(FAMILIES[model.config.model_type], model.config.num_hidden_layers)
    return lambda name: table.get_name(name, try_suffixes=(".weight", ".bias"))


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The model's tensors. A head that is the embedding itself is left out: llama.cpp ties them then."""
    embedding = model.get_input_embeddings().weight
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or tensor.data_ptr() != embedding.data_ptr():
            yield name, tensor


def _type_of(tensor: Tensor, matrix_type: GGMLQuantizationType) -> GGMLQuantizationType:
    if tensor.dim() == 1:
        return GGMLQuantizationType.F32
    if matrix_type == GGMLQuantizationType.Q8_0 and tensor.shape[-1] % Q8_0_BLOCK:
        return GGMLQuantizationType.F16  # as llama.cpp's own converter does
    return matrix_type
