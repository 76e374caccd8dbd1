"""The models that are measured: real dimensions with random weights, or SmolLM2 from Bough's cache."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bough.trees.mixers import let_mixers_branch

# hidden, intermediate, layers, heads, key-value heads, size of a head, vocabulary
SHAPES = {
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128, 151_936),
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151_936),
    "smollm2-135m": (576, 1536, 30, 9, 3, 64, 49_152),
    "tiny": (64, 192, 2, 4, 2, 16, 512),
}
NAMES = ["smollm2", *SHAPES]
# Three gated delta nets to one layer of attention, as in Qwen3.5: hidden, intermediate, layers, heads, key-value heads,
# size of a head, vocabulary; the delta nets' key heads, value heads and size of a head.
HYBRIDS = {
    "qwen3.5-4b": ((2560, 9216, 32, 16, 4, 256, 248_320), (16, 32, 128)),
    "qwen3.5-small": ((128, 256, 4, 4, 2, 32, 2048), (2, 4, 32)),
}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(name: str, *, full: bool = False, checkpointing: bool = False) -> Any:
    """The model in training; every call gives the same weights.

    A GPU computes in bfloat16; there the weights are kept in it too, unless they are trained
    themselves (`full`): those stay float32, as Bough's stages and TRL have them.
    """
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if torch.cuda.is_available() and not full else torch.float32
    if name == "smollm2":
        from bough.models.resolve import resolve

        model = AutoModelForCausalLM.from_pretrained(resolve(name), dtype=dtype).to(device())
    else:
        torch.manual_seed(0)
        with device():
            model = AutoModelForCausalLM.from_config(_config(name), dtype=dtype)
    model.config.use_cache = False
    if name in HYBRIDS:
        # For TRL too: on a Hopper GPU with Triton before 3.7.1, the kernel that transformers calls cannot be trained.
        let_mixers_branch(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def outline(name: str) -> Any:
    """The model without its weights, inside `torch.device("meta")`."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(_config(name))


def config_folder(name: str, folder: Path) -> tuple[Path, str]:
    """A folder that other programs load the model from, and how vLLM calls what they find there."""
    if name == "smollm2":
        from bough.models.resolve import resolve

        return Path(resolve(name)), "auto"
    config = _config(name)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    return folder, "dummy"


def _config(name: str) -> Any:
    import transformers

    shape, mixer = HYBRIDS.get(name) or (SHAPES[name], None)
    hidden, intermediate, layers, heads, groups, size, vocabulary = shape
    settings: dict[str, Any] = {}
    if mixer:
        keys, values, width = mixer
        settings = {"linear_num_key_heads": keys, "linear_num_value_heads": values}
        settings |= {"linear_key_head_dim": width, "linear_value_head_dim": width}
        settings["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)
    make = transformers.Qwen3_5TextConfig if mixer else transformers.Qwen3Config
    return make(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=size,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **settings,
    )


def fill_adapter(model: nn.Module) -> None:
    """Give a LoRA adapter weights that follow from the names of its layers alone.

    Both matrices are filled: with B at zero every DPO loss is log 2, and A would get no gradient.
    """
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        layer, matrix = name.split(".lora_")
        layer = layer.removeprefix("base_model.model.")
        generator = torch.Generator().manual_seed(zlib.crc32(f"{layer}.{matrix[0]}".encode()))
        bound = parameter.shape[1] ** -0.5 if matrix[0] == "A" else 0.01
        values = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            parameter.copy_(values)
