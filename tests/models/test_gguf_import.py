"""GGUF files as models: the same numbers, tokens and template; the head as it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM

from bough.errors import InputError
from bough.models import gguf_read, resolve
from bough.models.gguf_read import GGUFSource, gguf_source, llama3_positions
from bough.models.gguf_tokenizer import LLAMA3_RULE
from bough.models.gguf_write import write_gguf
from bough.models.resolve import model_digest, model_name, stamp
from bough.policy.load import base_and_adapter
from tests.models.gguf_samples import NUM_ROWS, SPLIT_OF, make_model, make_tokenizer
from tests.models.test_gguf_file import TEXTS, largest_difference

CASES = {
    "llama": {},
    "llama, untied": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen2, tied": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 48},
}


def written(folder: Path, case: str, type_name: str = "f32") -> tuple[Path, Any, Any]:
    family = case.partition(",")[0]
    model, tokenizer = make_model(family, **CASES[case]), make_tokenizer(SPLIT_OF[family])
    write_gguf(model, tokenizer, folder / "model.gguf", type_name)
    return folder / "model.gguf", model, tokenizer


def imported(path: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a file, through a folder as a user loads them."""
    folder = path.parent / "folder"
    folder.mkdir()
    gguf_read.convert(path, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), resolve.load_tokenizer(str(folder))


@pytest.mark.parametrize("case", CASES)
def test_model_tokenizer_and_template_are_what_was_written(case: str, tmp_path: Path):
    path, model, tokenizer = written(tmp_path, case)
    again, read = imported(path)
    assert largest_difference(model, again) < 1e-5
    assert again.config.tie_word_embeddings == model.config.tie_word_embeddings
    tied = again.lm_head.weight.data_ptr() == again.get_input_embeddings().weight.data_ptr()
    assert tied == model.config.tie_word_embeddings
    for text in [*TEXTS, "cafe\u0301"]:  # composed for Qwen only
        assert read(text).input_ids == tokenizer(text).input_ids, text
        assert read.decode(read(text).input_ids) == tokenizer.decode(tokenizer(text).input_ids)
    assert read.chat_template == tokenizer.chat_template
    assert (read.eos_token, read.pad_token) == (tokenizer.eos_token, tokenizer.pad_token)
    # Rows without a token have none; transformers gives its own class for Qwen2 one more.
    assert len(tokenizer) <= len(read) < NUM_ROWS
    assert again.generation_config.eos_token_id == [tokenizer.eos_token_id]


def test_digits_of_smollm_stand_alone(tmp_path: Path):
    tokenizer = make_tokenizer("smollm")
    write_gguf(make_model("llama"), tokenizer, tmp_path / "model.gguf", "f32")
    _, read = imported(tmp_path / "model.gguf")
    assert read("x  12").input_ids == tokenizer("x  12").input_ids != make_tokenizer("gpt-2")("x  12").input_ids


@pytest.mark.parametrize(
    ("type_name", "dtype", "tolerance"),
    [("f16", "float16", 0.01), ("bf16", "bfloat16", 0.06), ("q8_0", "float32", 0.15)],
)
def test_a_file_keeps_its_precision(type_name: str, dtype: str, tolerance: float, tmp_path: Path):
    path, model, _ = written(tmp_path, "llama", type_name)
    again, _ = imported(path)
    assert 0 < largest_difference(model, again) < tolerance
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["dtype"] == dtype


def test_llama_3_splits_numbers_by_three_and_its_positions_are_scaled(tmp_path: Path):
    model = make_model("llama")
    rope = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    scaled = make_model("llama", rope_parameters=rope, max_position_embeddings=256)
    tokenizer = make_tokenizer("gpt-2")
    path = tmp_path / "plain.gguf"
    write_gguf(model, tokenizer, path, "f32")
    divisors = 1 / (scaled.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq)
    rewrite(path, tmp_path / "model.gguf", {"tokenizer.ggml.pre": "llama-bpe"}, {"rope_freqs.weight": divisors.numpy()})
    again, read = imported(tmp_path / "model.gguf")
    assert largest_difference(scaled, again) < 1e-5 < largest_difference(model, again)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_RULE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert read("x  12345").input_ids == tokenizer("x  12345").input_ids


def rewrite(path: Path, to: Path, texts: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
    """A copy of a file with other texts among its keys and more tensors."""
    from gguf import GGUFReader, GGUFValueType

    reader = GGUFReader(path)
    writer = GGUFWriter(to, reader.fields["general.architecture"].contents())
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        contents = texts.get(key, value.contents())
        inner = value.types[-1] if value.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, contents, value.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    for name, numbers in tensors.items():
        writer.add_tensor(name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_positions_of_another_rule_are_refused():
    with pytest.raises(InputError, match=r"scaled by a rule that cannot be read \(rope_freqs\)"):
        llama3_positions([1.0, 2.0, 8.0, 8.0], 10000.0, 8)


@pytest.mark.parametrize(
    ("texts", "tensors", "said"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, {}, "splits text by the rule 'klingon'; readable: gpt-2"),
        ({"tokenizer.ggml.model": "bert"}, {}, "its tokenizer is of the kind 'bert'"),
        ({}, {"blk.9.attn_q.weight": np.zeros((2, 2))}, "no place for: blk.9.attn_q.weight"),
        ({}, {"blk.0.attn_norm_2.weight": np.zeros(2)}, "no place for: blk.0.attn_norm_2.weight"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(texts: dict, tensors: dict, said: str, tmp_path: Path):
    path, *_ = written(tmp_path, "llama")
    rewrite(path, tmp_path / "other.gguf", texts, tensors)
    with pytest.raises(InputError, match=said):
        gguf_read.convert(tmp_path / "other.gguf", tmp_path)


@pytest.mark.usefixtures("warm_python")
def test_a_file_is_converted_once_wherever_it_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, model, tokenizer = written(tmp_path, "qwen3")
    folder = resolve.resolve(str(path))
    assert isinstance(folder, Path) and folder.parent == cache / "models"
    monkeypatch.setattr(gguf_read, "run_module", None)  # a second conversion would fail
    moved = path.rename(tmp_path / "renamed.gguf")
    assert resolve.resolve(str(moved)) == folder
    assert gguf_source(str(folder)) == GGUFSource("model.gguf")
    assert model_digest(str(moved)) == model_digest(str(folder))
    assert resolve.load_tokenizer(str(moved))("Hi 12").input_ids == tokenizer("Hi 12").input_ids
    assert largest_difference(model, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)) < 1e-5
    resolve.check_name(str(moved))


def test_an_adapter_whose_converted_base_is_gone_asks_for_the_file(tmp_path: Path):
    base = tmp_path / f"gguf-{'0' * 24}-1"
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(InputError, match=rf"--model FILE\.gguf --adapter {tmp_path}"):
        base_and_adapter(str(tmp_path))
    base.mkdir()
    assert base_and_adapter(str(tmp_path)) == (str(base), tmp_path)


@pytest.mark.usefixtures("warm_python")
def test_a_conversion_that_is_refused_says_why_and_leaves_nothing(cache: Path, tmp_path: Path):
    path, *_ = written(tmp_path, "llama")
    rewrite(path, tmp_path / "other.gguf", {"tokenizer.ggml.pre": "klingon"}, {})
    with pytest.raises(InputError, match=r"other\.gguf: its tokenizer splits text by the rule 'klingon'"):
        resolve.resolve(str(tmp_path / "other.gguf"))
    assert not list((cache / "models").glob("*gguf*/"))


@pytest.mark.parametrize("name", ["resolve", "check_name"])
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"model\.gguf is not a GGUF file"):
        getattr(resolve, name)(str(tmp_path / "model.gguf"))


def test_records_know_one_file_from_another(tmp_path: Path):
    for folder, content in (("a", b"GGUF one"), ("b", b"GGUF two")):
        (tmp_path / folder / "models").mkdir(parents=True)
        (tmp_path / folder / "models" / "m.gguf").write_bytes(content)
    one, other = (str(tmp_path / folder / "models" / "m.gguf") for folder in "ab")
    assert model_name(one).startswith("models/m.gguf@") and model_name(one) != model_name(other)
    [[name, size, _]] = stamp(one, None)
    assert (name, size) == ("m.gguf", 8)
