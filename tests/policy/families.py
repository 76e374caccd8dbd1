"""Small random models of many families, whose attention and head differ in what a tree must get right."""

import pytest
import torch
import transformers
from packaging.version import Version

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
        | {"num_local_experts": 2, "intermediate_size_mlp": 96, "attn_temperature_tuning": False},
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
    "doge": ("DogeConfig", SHAPE),
    "llama4_tuned": (
        "Llama4TextConfig",
        TREES["llama4"][1] | {"attn_temperature_tuning": True, "floor_scale": 2, "attn_scale": 0.5},
    ),
}  # fmt: skip
# Caps that `Head` does not know, far above the logits of a random model.
CAPPED = {
    "recurrent_gemma": ("RecurrentGemmaConfig", SHAPE | {"lru_width": 64, "attention_window_size": 8}),
    "xlstm": (
        "xLSTMConfig",
        {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "chunk_size": 16}
        | {"embedding_dim": 64, "num_blocks": 2, "return_last_states": False},
    ),
}
DROP_NOTHING = dict.fromkeys(["attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout", "hidden_dropout_prob"], 0.0)
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
# What the local engine cannot run, and training can.
ENGINELESS = {
    "biogpt": ("BioGptConfig", SHAPE | DROP_NOTHING | {"attention_probs_dropout_prob": 0.0, "layerdrop": 0.0}),
    "codegen": ("CodeGenConfig", GPT | DROP_NOTHING | {"rotary_dim": 8}),
    "ctrl": ("CTRLConfig", GPT | DROP_NOTHING | {"dff": 96}),
    "diffllama": ("DiffLlamaConfig", SHAPE),
    "falcon": ("FalconConfig", {key: value for key, value in SHAPE.items() if key != "head_dim"}),
    "gemma4_text": ("Gemma4TextConfig", SHAPE | MIXED | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0}),
    "gemma4_unified_text": ("Gemma4UnifiedTextConfig", SHAPE | MIXED | {"num_kv_shared_layers": 0}),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", SHAPE | {"hidden_dropout": 0.0, "attention_dropout": 0.0}),
    "gptj": ("GPTJConfig", GPT | DROP_NOTHING | {"rotary_dim": 8}),
    "granite_swa": ("GraniteSWAConfig", SHAPE | MIXED),
    "granitemoe_swa": ("GraniteMoeSWAConfig", SHAPE | MIXED | EXPERTS | {"shared_intermediate_size": 96}),
    "hrm_text": ("HrmTextConfig", SHAPE),
    "jetmoe": ("JetMoeConfig", SHAPE | EXPERTS | {"kv_channels": 16}),
    "mimo_v2_flash": (
        "MiMoV2FlashConfig",
        SHAPE | MIXED | {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_group": 1}
        | {"topk_group": 1, "v_head_dim": 16, "mlp_layer_types": ["dense", "sparse"]},
    ),
    "opt": ("OPTConfig", SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0, "layerdrop": 0.0}),
    "whisper": (
        "WhisperConfig",
        {"vocab_size": 200, "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96}
        | {"dropout": 0.0, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    ),
    "xglm": (
        "XGLMConfig",
        {"vocab_size": 200, "d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4, "dropout": 0.0}
        | {"attention_dropout": 0.0, "max_position_embeddings": 256},
    ),
}  # fmt: skip


def make(family: str, **changed: object) -> torch.nn.Module:
    name, settings = (TREES | PLAIN | CAPPED | ENGINELESS)[family]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    if family == "doge" and Version(transformers.__version__) < Version("5.19"):
        pytest.skip("transformers before 5.19 computes doge without a causal mask")
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings | changed)).eval()
