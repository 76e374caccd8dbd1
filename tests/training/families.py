"""Small random models of many families, whose attention and head differ in what a tree must get right."""

import torch
import transformers

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.1}
MIXED = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
MIXER = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 6}
LONG_ROPE |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

# Windows and chunks are shorter than the calls, caps low enough to bite.
TREES = {
    "llama": ("LlamaConfig", SHAPE),
    "qwen3": ("Qwen3Config", SHAPE | {"tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2Config",
        SHAPE | MIXED | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3": ("Gemma3TextConfig", SHAPE | MIXED | {"query_pre_attn_scalar": 16}),
    "gpt2": ("GPT2Config", GPT | dict.fromkeys(["attn_pdrop", "embd_pdrop", "resid_pdrop"], 0.0)),
    "mistral": ("MistralConfig", SHAPE | {"sliding_window": 3}),
    "granite": ("GraniteConfig", SHAPE | {"logits_scaling": 3.0}),
    "cohere": ("CohereConfig", SHAPE | {"logit_scale": 0.5}),
    "llama4": (
        "Llama4TextConfig",
        SHAPE
        | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 3, "no_rope_layers": [1, 0]}
        | {"num_local_experts": 2, "intermediate_size_mlp": 96},
    ),
    "gpt_oss": ("GptOssConfig", SHAPE | MIXED | {"num_local_experts": 2, "num_experts_per_tok": 1}),
}
PLAIN = {
    "mamba": ("MambaConfig", {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "qwen3_next": (
        "Qwen3NextConfig",
        SHAPE | MIXER | {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2}
        | {"num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "lfm2": ("Lfm2Config", SHAPE | {"layer_types": ["conv", "full_attention"]}),
    "bloom": ("BloomConfig", {"vocab_size": 200, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        "GPTNeoConfig",
        {"vocab_size": 200, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 3},
    ),
    "phi3": ("Phi3Config", SHAPE | {"rope_parameters": LONG_ROPE}),
}  # fmt: skip


def make(family: str, **changed: object) -> torch.nn.Module:
    name, settings = (TREES | PLAIN)[family]
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings | changed)).eval()
