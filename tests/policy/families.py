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
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
SHARED_MOE = MOE | {"shared_expert_intermediate_size": 16}
MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
# Layers that carry state: convolutions, gated delta nets, Mamba-2. Chunks are shorter than the calls.
HYBRIDS = {
    "lfm2": ("Lfm2Config", SHAPE | {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        SHAPE | MOE | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "qwen3_next": ("Qwen3NextConfig", SHAPE | MIXER | LINEAR | SHARED_MOE),
    "qwen3_5_text": ("Qwen3_5TextConfig", SHAPE | MIXER | LINEAR | {"linear_num_value_heads": 4}),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", SHAPE | MIXER | LINEAR | SHARED_MOE),
    "olmo_hybrid": ("OlmoHybridConfig", SHAPE | MIXER | LINEAR),
    "kimi_linear": (
        "KimiLinearConfig",
        SHAPE | MOE | LINEAR | {"linear_head_dim": 8, "linear_num_heads": 2, "num_key_value_heads": 4}
        | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 16}
        | {"num_local_experts": 2},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        SHAPE | LINEAR | MAMBA_2 | {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 32},
    ),
    "bamba": ("BambaConfig", SHAPE | MAMBA_2 | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", SHAPE | MAMBA_2 | {"mamba_d_ssm": 128, "time_step_limit": [0.1, 0.9]}),
    "nemotron_h": (
        "NemotronHConfig",
        SHAPE
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_num_heads": 4}
        | {"mamba_head_dim": 32, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 4, "n_routed_experts": 2}
        | {"moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "num_experts_per_tok": 1},
    ),
    "zamba2": (
        "Zamba2Config",
        SHAPE
        | {"layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 8, "mamba_headdim": 32}
        | {"n_mamba_heads": 4, "mamba_ngroups": 2, "chunk_size": 4, "num_mem_blocks": 1, "attention_head_dim": 32},
    ),
    "mamba2": (
        "Mamba2Config",
        {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 32}
        | {"state_size": 8, "n_groups": 2, "chunk_size": 4, "initializer_range": 0.1},
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
# More decoders. The local engine samples most of them by the model's own code with its own cache.
DECODERS = {
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
    "mixtral": ("MixtralConfig", SHAPE | EXPERTS),
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
    name, settings = (TREES | HYBRIDS | PLAIN | CAPPED | DECODERS)[family]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    if family == "doge" and Version(transformers.__version__) < Version("5.19"):
        pytest.skip("transformers before 5.19 computes doge without a causal mask")
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings | changed)).eval()
