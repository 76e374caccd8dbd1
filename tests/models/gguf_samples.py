"""Small random models of the families that are written as GGUF, and tokenizers that split as theirs do."""

from typing import Any

import torch
import transformers
from tokenizers import Regex, normalizers, pre_tokenizers

from bough.models.gguf_tokenizer import QWEN2_RULE
from bough.models.resolve import load_tokenizer

NUM_ROWS = 1030  # six more than the tokenizer has tokens
SHAPE: dict[str, Any] = {
    "vocab_size": NUM_ROWS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
# Heads are wider than the hidden size has room for. transformers reads a Qwen3 back with heads of 128, whatever
# the file says, and a Qwen2 with heads that share out the hidden size.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {"head_dim": 128, "tie_word_embeddings": True}),
}
SPLIT_OF = {"llama": "gpt-2", "qwen2": "qwen2", "qwen3": "qwen2"}


def make_model(family: str, **settings: Any) -> Any:
    name, own = FAMILIES[family]
    config = getattr(transformers, name)(**SHAPE | own | settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # biases and norms too, or their loss would not show
        parameter.data.normal_(mean=0.0 if parameter.dim() > 1 else 0.5, std=0.2)
    return model


def make_tokenizer(split: str) -> Any:
    tokenizer = load_tokenizer("tiny")
    backend = tokenizer.backend_tokenizer
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    elif split == "qwen2":
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_RULE), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return tokenizer
