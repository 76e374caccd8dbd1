"""A miniature of a model: the same code and the same kinds of layers, but few and narrow ones.

It computes in milliseconds what the model would need gigabytes for. How a model works (how
far a layer looks, how positions enter, what happens to the logits) follows from its class
and its config, so a path that is wrong for the model is wrong for its miniature too.
Windows and other lengths are cut as well: a few dozen tokens pass all of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bough.errors import BoughError

VOCABULARY, POSITIONS = 256, 512  # at least this, too
LENGTH = 8
# The largest value of a setting, by its name; the first pattern that matches counts. The sizes fit together:
# 64 is four heads of 16, and 128 is twice that, as in Mamba and in most feed-forward layers.
LARGEST = [
    (re.compile(pattern), largest)
    for pattern, largest in (
        (r"token_id|_bias_max|type_vocab|conv|kernel|expand|divisible|time_step_(min|max|floor|limit)", None),
        (r"round_up_to_multiple", 8),
        (r"vocab", VOCABULARY),
        (r"original_max", LENGTH),
        (r"max_\w*position|^n_(positions|ctx)$|max_seq_len|max_length|context_length|max_distance", POSITIONS),
        # Lengths that a sequence may pass.
        (r"max_window_layers", None),
        (r"window|chunk|local_attention$|floor_scale|index_topk|block_size|rel_extent|mem_len|num_buckets", LENGTH),
        # Experts.
        (r"topk_group|top_k_group|n_mamba_heads|mamba_ngroups", 1),
        (r"experts_per_tok|moe_k$|moe_top_?k|top_k$|n_groups?$|o_groups|shared_experts|split_\w*parts", 2),
        (r"(num|n)_\w*experts$|zero_expert_num", 4),
        (r"(moe|expert)\w*(intermediate|hidden)_size|hc_lowrank|router_hidden_size", 32),
        # Heads.
        (r"linear_num_key_heads", 2),
        (r"mamba\w*_heads", 8),
        (r"index_n_heads", 64),
        (r"heads(_per_ngram)?$|n_head$|num_query_groups", 4),
        (r"(rope|nope)_head_dim|rotary_dim|d_state|state_size|dt_rank|time_step_rank|d_rel$", 8),
        (r"head_?dim|d_head|dim_head|head_size|kv_channels|pre_attn_scalar|rank$|per_layer_input|num_centroids", 16),
        # Widths.
        (r"image_size", 16),
        (r"intermediate|ffn|^dff$|dim_ff|feed_forward|d_inner|d_ssm", 128),
        (r"hidden_size|d_model|n_embd|emb(ed(ding)?)?_(dim|size)|embed_proj_dim|lru_width", 64),
        (r"patch_size", 4),
        (r"(encoder_layers|depth|num_layers_per_stack)$", 2),
    )
]
SHARED_HEADS = re.compile(r"num_(\w+_)?key_value_heads|num_kv_heads")
# How many heads there are and how large each is, where that makes a multiple of the hidden size.
HEADS_AND_SIZES = [
    ("num_attention_heads", "attention_head_dim"),
    ("num_heads", "head_dim"),
    ("mamba_n_heads", "mamba_d_head"),
    ("n_mamba_heads", "mamba_headdim"),
]
# A layer from this one on differs from those before it.
FIRST_FEW = re.compile(r"first_k_dense_replace|moe_layer_start_index|num_dense_layers")


def miniature(model: Any) -> Any:
    """A small float32 model of the class and config of `model`, on the CPU, with random weights from a fixed seed.

    BoughError if none can be made that consists of the same kinds of modules.
    """
    config = model.config
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not isinstance(count, int):
        raise BoughError(f"no small copy of {type(model).__name__} can be made (its config names no number of layers)")
    problem = "it would have other kinds of layers"
    for layers in _choices(config, count):
        try:
            small = _built(type(model), _reduced(config, layers))
        except Exception as error:  # a config that does not fit together fails in the model's own ways
            problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            continue
        if _kinds(small) == _kinds(model):
            return small
    raise BoughError(f"no small copy of {type(model).__name__} can be made ({problem})")


def _built(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        model = kind(config).to(torch.float32).eval()
        for name, weight in model.named_parameters():
            weight.requires_grad_(False)
            if weight.dim() > 1:
                weight.copy_((torch.rand(weight.shape) - 0.5) * 0.4)
            elif "A_log" not in name:  # sinks and biases that start at zero must be felt
                weight.add_((torch.rand(weight.shape) - 0.5) * 0.2)
    return model


def _kinds(model: Any) -> set[type]:
    """What a model consists of; adapters and quantized layers are not its own."""
    return {type(module) for module in model.modules() if type(module).__module__.startswith("transformers.models.")}


def _choices(config: Any, count: int) -> Iterator[list[int]]:
    """Which layers to keep: one of each kind that the config names, then more and more, then all."""
    columns: list[list[Any]] = []
    for name, value in _settings(config.get_text_config(decoder=True)):
        if _indices(name, value, count):
            columns.append([layer in value for layer in range(count)])
        elif _per_layer(value, count):
            columns.append(list(map(str, value)))
    signatures = list(zip(*columns, strict=True)) or [()] * count
    firsts = [signatures.index(signature) for signature in dict.fromkeys(signatures)]
    yield sorted({*firsts, 0, count - 1})
    yield from ([*range(size)] for size in (4, 8, 16, 32) if size < count)
    yield [*range(count)]


def _per_layer(values: Any, count: int) -> bool:
    return isinstance(values, list | tuple) and len(values) == count


def _reduced(config: Any, layers: list[int]) -> Any:
    """The config with these layers and small sizes, in its parts too (a vision tower's, say)."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    for part in _parts(config):
        part_layers = layers if part is text else [*range(min(2, getattr(part, "num_hidden_layers", 2)))]
        if overrides := part.to_dict().get("per_layer_config"):
            part.per_layer_config = None
        before = copy.copy(part)
        _cut_layers(part, part_layers)
        _cut_sizes(part, before)
        if overrides:
            kept = {new: dict(overrides[str(old)]) for new, old in enumerate(part_layers) if str(old) in overrides}
            for own in kept.values():
                for name, value in own.items():
                    small: Any = getattr(part, name, None)
                    if _whole(value) and _whole(small):  # still larger or smaller than that of the other layers
                        own[name] = small * 2 if value > getattr(before, name) else max(1, small // 2)
            part.per_layer_config = kept
    return config


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _cut_layers(config: Any, layers: list[int]) -> None:
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int):
        return
    new = {old: index for index, old in enumerate(layers)}
    for name, value in _settings(config):
        if _per_layer(value, count) and not _indices(name, value, count):
            setattr(config, name, [value[layer] for layer in layers])
        elif _indices(name, value, count):
            setattr(config, name, [new[layer] for layer in value if layer in new])
        elif FIRST_FEW.search(name) and isinstance(value, int):
            setattr(config, name, sum(layer < value for layer in layers))
    if shared := getattr(config, "num_kv_shared_layers", None):
        config.num_kv_shared_layers = sum(layer >= count - shared for layer in layers)
    config.num_hidden_layers = len(layers)


def _indices(name: str, value: Any, count: int) -> bool:
    """Whether a setting lists layers by their numbers."""
    return (
        isinstance(value, list | tuple)
        and bool(re.search(r"layers$|idxs$|layer_ids$", name))
        and all(isinstance(layer, int) and not isinstance(layer, bool) and layer < count for layer in value)
        and len(set(value)) == len(value)
    )


def _cut_sizes(config: Any, before: Any) -> None:
    heads, positions = getattr(before, "num_attention_heads", None), getattr(before, "max_position_embeddings", None)
    for name, value in _settings(config):
        small = value
        if isinstance(value, dict):
            small = _small_rope(value)
        elif isinstance(value, list | tuple):
            small = [_small(name, one) if _whole(one) else one for one in value]
        elif _whole(value) and SHARED_HEADS.search(name):  # all, some or one: the relation stays
            small = 4 if value == heads else min(value, 2)
        elif _whole(value):
            small = _small(name, value)
            if small == LENGTH and _whole(positions) and value >= positions:  # never passed
                small = value
        if small is not value and small != value:
            setattr(config, name, small)
    # Sizes that follow from others keep their relation to them.
    if hasattr(config, "qk_rope_head_dim") and hasattr(config, "head_dim"):
        config.head_dim = config.qk_rope_head_dim
    hidden = getattr(before, "hidden_size", None)
    if wide := getattr(before, "attention_hidden_size", None):
        config.attention_hidden_size = config.hidden_size * wide // hidden
    for number, size in HEADS_AND_SIZES:
        whole = (getattr(before, number, None) or 0) * (getattr(before, size, None) or 0)
        if whole and hidden and whole % hidden == 0:
            setattr(config, size, config.hidden_size * (whole // hidden) // getattr(config, number))
    if getattr(config, "mamba_d_ssm", None):
        config.mamba_d_ssm = config.mamba_n_heads * config.mamba_d_head


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _small(name: str, value: int) -> int:
    if name.endswith("token_id"):
        return value % VOCABULARY
    largest = next((largest for pattern, largest in LARGEST if pattern.search(name)), None)
    if largest in (VOCABULARY, POSITIONS):
        return largest
    return value if largest is None else min(value, largest)


def _small_rope(value: dict[Any, Any]) -> dict[Any, Any]:
    """Rotary settings, flat or by kind of layer, for heads of 16."""
    small: dict[Any, Any] = {}
    for name, one in value.items():
        if isinstance(one, dict):
            small[name] = _small_rope(one)
        elif name in ("short_factor", "long_factor"):
            small[name] = list(one[:8])
        elif name == "mrope_section":
            half = int(8 * value.get("partial_rotary_factor", 1.0))
            small[name] = [half - 2 * (half // 3), half // 3, half // 3]
        elif isinstance(one, int) and isinstance(name, str):
            small[name] = _small(name, one)
        else:
            small[name] = one
    return small


def _settings(config: Any) -> Iterable[tuple[str, Any]]:
    return [(name, value) for name, value in vars(config).items() if not name.startswith("_")]
