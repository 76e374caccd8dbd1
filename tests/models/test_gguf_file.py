from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, GgufConfig

from bough.errors import InputError
from bough.models.gguf_write import write_gguf
from bough.models.resolve import load_tokenizer
from tests.models.gguf_samples import FAMILIES, NUM_ROWS, SPLIT_OF, make_model, make_tokenizer

IDS = torch.randint(NUM_ROWS, (1, 40), generator=torch.Generator().manual_seed(0))
TEXTS = [
    "I don't know: WE'LL see, it's O'Neil's.",
    "In 1984 there were\n   42 owls, x  12 3.14159 and 1,000,000",
    "  two spaces, a tab\t\tand\r\n\r\nlines \n \n  \n",
    "café naïve Ω 日本語 한국어 🦉👩‍👩‍👧 ½ ² ٣",
    "<|im_start|>user\nGo north.<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return {'a': [x**2, -1]}  # !?",
]


def write(family: str, folder: Path, type_name: str = "f32", **settings: Any) -> Any:
    model = make_model(family, **settings)
    write_gguf(model, make_tokenizer(SPLIT_OF[family]), folder / "model.gguf", type_name)
    return model


def read_back(folder: Path) -> Any:
    settings = GgufConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="model.gguf", quantization_config=settings, dtype=torch.float32
    ).eval()


@torch.no_grad()
def largest_difference(one: Any, other: Any) -> float:
    return float((one(IDS).logits - other(IDS).logits).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_in_float32_computes_the_same(family: str, tmp_path: Path):
    model = write(family, tmp_path)
    again = read_back(tmp_path)
    assert again.config.model_type == family
    assert model(IDS).logits.std() > 0.5
    assert largest_difference(model, again) < 1e-5


def test_the_shape_is_in_the_file_even_where_transformers_does_not_look(tmp_path: Path):
    write("qwen3", tmp_path)
    fields = {name: field.contents() for name, field in GGUFReader(tmp_path / "model.gguf").fields.items()}
    shape = {name.removeprefix("qwen3."): value for name, value in fields.items() if name.startswith("qwen3.")}
    assert shape == {
        "vocab_size": NUM_ROWS,
        "context_length": 256,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "rope.dimension_count": 128,
        "rope.freq_base": 5000.0,
    }
    assert fields["general.architecture"] == "qwen3" and fields["general.name"] == "model"


def test_a_head_that_was_trained_away_from_the_embedding_is_written(tmp_path: Path):
    model = make_model("llama")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    write_gguf(model, load_tokenizer("tiny"), tmp_path / "model.gguf", "f32")
    assert largest_difference(model, read_back(tmp_path)) < 1e-5
    write("llama", tmp_path / "tied")
    assert "output.weight" not in [tensor.name for tensor in GGUFReader(tmp_path / "tied" / "model.gguf").tensors]


def test_vectors_stay_float32_and_rows_that_do_not_fill_blocks_become_f16(tmp_path: Path):
    write("qwen2", tmp_path, "q8_0", intermediate_size=100)
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert types["blk.0.attn_q.weight"] == types["output.weight"] == types["blk.0.ffn_up.weight"] == "Q8_0"
    assert types["blk.0.attn_q.bias"] == types["blk.0.attn_norm.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "F16"
    read_back(tmp_path)


def test_a_key_of_two_heads_is_written_as_neighbours(tmp_path: Path):
    model = make_model("llama", head_dim=8)
    rows = torch.arange(16.0)[:, None].expand(16, 64)  # two heads of eight rows
    model.model.layers[0].self_attn.k_proj.weight.data = rows.contiguous()
    write_gguf(model, load_tokenizer("tiny"), tmp_path / "model.gguf", "f32")
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    written = tensors["blk.0.attn_k.weight"][:, 0].tolist()
    assert written == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type linear"),
        ("llama", {"attention_bias": True}, "no place for its model.layers.0.self_attn.q_proj.bias"),
        ("llama", {"hidden_act": "gelu"}, "activation is gelu; allowed: silu"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding window"),
        ("llama", {"vocab_size": 1000}, "a token 1023 and its embedding only 1000 rows"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    family: str, settings: dict[str, Any], message: str, tmp_path: Path
):
    with pytest.raises(InputError, match=message):
        write(family, tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_numbers_beyond_f16_are_refused_in_f16_only(tmp_path: Path):
    model = make_model("llama")
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = -70000.0
    with pytest.raises(InputError, match=r"layers.1.mlp.up_proj.weight contains numbers outside the range of f16"):
        write_gguf(model, load_tokenizer("tiny"), tmp_path / "model.gguf", "f16")
    write_gguf(model, load_tokenizer("tiny"), tmp_path / "model.gguf", "bf16")
    gpt2 = AutoModelForCausalLM.from_pretrained(load_tokenizer("tiny-gpt2").name_or_path)
    with pytest.raises(InputError, match="family gpt2; allowed: llama, qwen2, qwen3"):
        write_gguf(gpt2, load_tokenizer("tiny-gpt2"), tmp_path / "other.gguf", "f16")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
