"""A model's configuration from the head of a GGUF file: the inverse of what `gguf_file.py` writes, and Gemma's.

Everything that the file says is set; transformers' defaults are those of one checkpoint. What would be
computed differently from llama.cpp is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bough.errors import InputError
from bough.models.gguf_header import Header

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma2": "Gemma2Config",
    "gemma3": "Gemma3TextConfig",
}
ROPE_FREQUENCIES = "rope_freqs.weight"
# The settings of Llama 3.1's positions that all its models share; only the factor differs.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Gemma's largest models scale attention by the width of the model, all others by that of a head.
WIDEST = {"gemma2": 46, "gemma3": 62}  # their number of layers
SLIDING_EVERY = {"gemma2": 2, "gemma3": 6}


def model_config(header: Header) -> PretrainedConfig:
    """The configuration. Raises InputError for a model that cannot be read, with the reason."""
    import transformers

    family = header.architecture
    if family not in CLASSES:
        raise InputError(f"the model is of the family {family or 'unknown'!r:.40}; readable: {', '.join(CLASSES)}")
    heads = _needed(header, "attention.head_count")
    width = _needed(header, "embedding_length")
    settings = {
        "hidden_size": width,
        "num_hidden_layers": _needed(header, "block_count"),
        "intermediate_size": _needed(header, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(header, "attention.head_count_kv", heads),
        "max_position_embeddings": _needed(header, "context_length"),
        "rms_norm_eps": float(header.key("attention.layer_norm_rms_epsilon", 1e-6)),
        "vocab_size": _vocabulary(header),
        "head_dim": _head_width(header, width, heads),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _positions(header),
        **_own(header, width, heads),
    }
    for token in ("bos", "eos", "padding"):
        settings[f"{token.replace('padding', 'pad')}_token_id"] = header.metadata.get(
            f"tokenizer.ggml.{token}_token_id"
        )
    config: PretrainedConfig = getattr(transformers, CLASSES[family])(**settings)
    return config


def _own(header: Header, width: int, heads: int) -> dict[str, Any]:
    """Settings that only one family has."""
    family = header.architecture
    if family == "llama":
        return {
            "attention_bias": "blk.0.attn_q.bias" in header.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        }
    if family == "qwen2":
        return {"use_sliding_window": False}
    if not family.startswith("gemma"):
        return {}
    layers, every = _needed(header, "block_count"), SLIDING_EVERY[family]
    scale = width // heads if layers == WIDEST[family] else _head_width(header, width, heads)
    own: dict[str, Any] = {
        "query_pre_attn_scalar": scale,
        "sliding_window": _needed(header, "attention.sliding_window"),
        "layer_types": ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)],
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if family == "gemma2":
        own["attn_logit_softcapping"] = header.key("attn_logit_softcapping", 50.0)
        own["final_logit_softcapping"] = header.key("final_logit_softcapping", 30.0)
    return own


def _positions(header: Header) -> dict[str, Any]:
    theta = float(header.key("rope.freq_base", 10000.0))
    scaling = header.key("rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling == "linear":
        rope = {"rope_type": "linear", "rope_theta": theta, "factor": float(header.key("rope.scaling.factor", 1.0))}
    elif scaling != "none":
        raise InputError(f"its positions are scaled in a way that cannot be read ({scaling!r:.40}); readable: linear")
    if header.architecture == "gemma3":
        # Layers with a window keep their own positions, which the file does not mention.
        local = {"rope_type": "default", "rope_theta": float(header.key("rope.freq_base_swa", 10000.0))}
        return {"full_attention": rope, "sliding_attention": local}
    return rope


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


def _head_width(header: Header, width: int, heads: int) -> int:
    return _whole(header, "attention.key_length", width // heads)


def _vocabulary(header: Header) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise InputError("the file has no token embedding (token_embd.weight); is it a model?")
    return embedding.shape[0]


def _needed(header: Header, name: str) -> int:
    found = _whole(header, name, 0)
    if not found:
        raise InputError(f"the file does not say {header.architecture}.{name}")
    return found


def _whole(header: Header, name: str, default: int) -> int:
    found = header.key(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= 1 << 31:
        raise InputError(f"{header.architecture}.{name} is {found!r:.60}; it must be a whole number")
    return found
