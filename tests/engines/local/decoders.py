"""Small random decoders whose layers keep something else than keys and values of one size, for the general path."""

import pytest
import torch
import transformers

from tests.policy.families import EXPERTS, MIXED, MIXER, PLAIN, SHAPE, make

MLA = {
    "head_dim": 8,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
ROUTED = {
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
MORE = {
    "qwen3_5": ("Qwen3_5TextConfig", SHAPE | MIXER | {"layer_types": ["linear_attention", "full_attention"]}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        SHAPE | MAMBA2 | EXPERTS | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    ),
    "falcon_h1": ("FalconH1Config", SHAPE | MAMBA2 | {"mamba_d_ssm": 128, "mamba_expand": 2}),
    "nemotron_h": (
        "NemotronHConfig",
        SHAPE | {"layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3, "mamba_num_heads": 4}
        | {"mamba_head_dim": 32, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16},
    ),
    "jamba": (
        "JambaConfig",
        SHAPE | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2}
        | {"num_experts_per_tok": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    "minimax": (
        "MiniMaxConfig",
        SHAPE | EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "block_size": 16},
    ),
    "rwkv": (
        "RwkvConfig",
        {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}
        | {"intermediate_size": 64, "context_length": 256},
    ),
    "deepseek_v3": ("DeepseekV3Config", SHAPE | MLA | ROUTED),
    "minicpm3": ("MiniCPM3Config", SHAPE | MLA),
    "gemma4_shared": (
        "Gemma4TextConfig",
        SHAPE | MIXED | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "num_hidden_layers": 4}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "mpt": ("MptConfig", {"vocab_size": 200, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "phi3_turning": ("Phi3Config", PLAIN["phi3"][1] | {"original_max_position_embeddings": 60}),
    "dynamic": (
        "LlamaConfig",
        SHAPE | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
}  # fmt: skip


def decoder(family: str, **changed: object) -> torch.nn.Module:
    if family not in MORE:
        return make(family, **changed)
    name, settings = MORE[family]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    config = getattr(transformers, name)(**settings | changed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()
