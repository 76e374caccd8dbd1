import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, GPT2Config, LlamaConfig, Qwen3Config

from bough.models.resolve import context_length, context_of, resolve
from bough.models.tiny import CONTEXT


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3", "tiny-gemma", "tiny-gpt2"])
def test_the_context_is_what_the_configuration_says(name: str):
    assert context_length(name) == CONTEXT


def test_a_tokenizer_without_a_model_sets_no_limit(tmp_path: Path):
    shutil.copy(Path(resolve("tiny")) / "tokenizer.json", tmp_path)
    assert context_length(str(tmp_path)) is None


def test_positions_without_a_limit_set_none():
    assert context_of(BloomConfig()) is None
    assert context_of(GPT2Config(n_positions=77)) == 77


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, 4096),
        ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        # The length is that of the scaled model already.
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048}, 4096),
        (
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024,
             "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            4096,
        ),
    ],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else str(value),
)  # fmt: skip
def test_scaled_positions_reach_further(rope: dict[str, Any] | None, expected: int):
    for kind in (LlamaConfig, Qwen3Config):
        assert context_of(kind(max_position_embeddings=4096, rope_scaling=rope)) == expected
