from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from bough.models.gguf_tokenizer import SPLITS, Vocabulary
from tests.models.gguf_samples import make_tokenizer

NUM_TOKENS = 1024


def fields(tokenizer: Any, num_rows: int, folder: Path) -> dict[str, Any]:
    """What a file says of the tokenizer."""
    writer = GGUFWriter(folder / "vocabulary.gguf", "llama")
    Vocabulary(tokenizer, num_rows).add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    found = GGUFReader(folder / "vocabulary.gguf").fields
    return {name.removeprefix("tokenizer."): field.contents() for name, field in found.items() if "tokenizer" in name}


def problems(tokenizer: Any) -> list[str]:
    return list(Vocabulary(tokenizer, NUM_TOKENS + 100).problems())


@pytest.mark.parametrize("split", SPLITS)
def test_a_tokenizer_is_named_after_how_it_splits(split: str, tmp_path: Path):
    tokenizer = make_tokenizer(split)
    assert problems(tokenizer) == []
    assert fields(tokenizer, NUM_TOKENS, tmp_path)["ggml.pre"] == split


def test_tokens_types_and_merges_stand_in_order_and_fill_the_rows(tmp_path: Path):
    tokenizer = make_tokenizer("gpt-2")
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    found = fields(tokenizer, NUM_TOKENS + 3, tmp_path)
    assert found["ggml.model"] == "gpt2"
    assert found["ggml.tokens"][:3] == ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    assert found["ggml.tokens"][3:NUM_TOKENS] == tokenizer.convert_ids_to_tokens(list(range(3, NUM_TOKENS)))
    assert found["ggml.tokens"][NUM_TOKENS:] == ["<think>", "[PAD1025]", "[PAD1026]"]
    assert found["ggml.token_type"] == [
        *[TokenType.CONTROL] * 3,
        *[TokenType.NORMAL] * (NUM_TOKENS - 3),
        *[TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNUSED],
    ]
    assert len(found["ggml.merges"]) == NUM_TOKENS - 3 - 256
    for merge in found["ggml.merges"]:
        left, right = merge.split(" ")
        assert left + right in found["ggml.tokens"]


def test_special_tokens_are_written_where_there_are_any(tmp_path: Path):
    tokenizer = make_tokenizer("gpt-2")
    found = fields(tokenizer, NUM_TOKENS, tmp_path)
    assert (found["ggml.eos_token_id"], found["ggml.padding_token_id"]) == (2, 0)
    assert "ggml.bos_token_id" not in found and "ggml.unknown_token_id" not in found
    assert found["ggml.add_bos_token"] is False and found["chat_template"] == tokenizer.chat_template
    tokenizer.bos_token = "<|im_start|>"
    assert fields(tokenizer, NUM_TOKENS, tmp_path)["ggml.add_bos_token"] is False
    start = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.backend_tokenizer.post_processor = start
    found = fields(tokenizer, NUM_TOKENS, tmp_path)
    assert found["ggml.add_bos_token"] is True and found["ggml.bos_token_id"] == 1


def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused():
    tokenizer = make_tokenizer("gpt-2")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert problems(tokenizer) == [
        "its tokenizer splits text by a rule without a known name in llama.cpp; allowed: gpt-2, smollm, qwen2"
    ]
    tokenizer = make_tokenizer("smollm")
    tokenizer.backend_tokenizer.normalizer = make_tokenizer("qwen2").backend_tokenizer.normalizer
    assert "without a known name" in problems(tokenizer)[0]
    tokenizer = make_tokenizer("qwen2")
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), behavior="isolated")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel()])
    assert "without a known name" in problems(tokenizer)[0]


def test_every_problem_of_a_tokenizer_is_named_at_once():
    tokenizer = make_tokenizer("gpt-2")
    tokenizer.eos_token = None
    tokenizer.add_tokens([AddedToken("<gap>", lstrip=True)])
    end = TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)])
    tokenizer.backend_tokenizer.post_processor = end
    found = problems(tokenizer)
    assert len(found) == 3
    assert "no eos token" in found[0] and "other tokens to a text" in found[1] and "'<gap>' swallows" in found[2]
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    assert problems(PreTrainedTokenizerFast(tokenizer_object=words)) == ["its tokenizer is not a plain byte-level BPE"]
