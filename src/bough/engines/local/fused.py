"""A decoder's step in few kernels, for the layers that most models have.

That is RMS norms before attention and feed-forward, rotary positions, keys shared by groups
of heads, and a gated SiLU. A step then has about ten kernels a layer instead of sixty. The
weights are copies in the type that is computed in, with projections of the same input joined and
the policy's own LoRA adapter added (`joined.py`); call `renew` after the policy's own have changed.

Whether a model is of this form is read off its modules and then tried: every layer's
attention and the whole decoder are compared with the model's own before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from bough.engines.local import kernels
from bough.engines.local.joined import Joined, base
from bough.engines.local.pages import PAGE, Tokens, block_size
from bough.engines.local.reader import TokenReader
from bough.engines.local.stack import Slots
from bough.policy.adapters import ACTOR
from bough.trees.layers import length_matters

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
EVERYTHING = 1 << 30  # tokens that a layer without a window sees
TRIED = 3 * PAGE // 2  # tokens: more than a page
TOLERANCE = 0.05  # of the root mean square, in 16 bits; what is computed otherwise differs by far more


@dataclass
class FusedLayer:
    """One layer: its own modules, and their weights as they are used here."""

    attention: Any
    qkv: Joined
    out: Joined
    gate_up: Joined
    down: Joined
    before: Any
    between: Any
    norms: tuple[Any, Any] | None
    window: int


class FusedDecoder:
    """Hidden states of tokens whose keys and values go to pages. With `fold`, the policy's adapter is in the copies."""

    def __init__(self, reader: TokenReader, *, fold: bool = True) -> None:
        decoder: Any = reader.policy.decoder
        self._fold, self._seeds = fold, count()
        self.reader, self.dtype = reader, reader.dtype
        self.embedding, self.norm = decoder.embed_tokens, decoder.norm
        self.layers = [
            self._layer(layer, sight.window) for layer, sight in zip(decoder.layers, reader.sights, strict=True)
        ]
        self.rotary = self._rotary(reader.context)
        self.slots = Slots()

    def _layer(self, layer: Any, window: int | None) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp

        def joined(*layers: nn.Module) -> Joined:
            return Joined(layers, self.dtype, fold=self._fold, seed=next(self._seeds))

        return FusedLayer(
            attention,
            joined(attention.q_proj, attention.k_proj, attention.v_proj),
            joined(attention.o_proj),
            joined(mlp.gate_proj, mlp.up_proj),
            joined(mlp.down_proj),
            layer.input_layernorm,
            layer.post_attention_layernorm,
            (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
            window or EVERYTHING,
        )

    def _rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """The model's own cosines and sines of all positions, in float32."""
        like = torch.empty(1, device=self.reader.device)
        cosine, sine = self.reader.policy.decoder.rotary_emb(like, torch.arange(length, device=like.device)[None])
        return cosine[0].float().contiguous(), sine[0].float().contiguous()

    def renew(self) -> None:
        """Copies the policy's newest weights."""
        for joined in self.joined():
            joined.folded = joined.folds and not self.slots  # a removal that failed may have left it otherwise
            joined.renew()

    def joined(self) -> Iterator[Joined]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def attend(
        self,
        layer: FusedLayer,
        x_TD: Tensor,
        kv: Tensor,
        table: Tensor,
        tokens: Tokens,
        splits: int,
        others_TS1: Tensor | None = None,
    ) -> Tensor:
        """The output of a layer's attention for its normed input."""
        norms = None if layer.norms is None else (layer.norms[0].weight, layer.norms[1].weight)
        eps = 0.0 if layer.norms is None else _eps(layer.norms[0])
        qkv_TX = layer.qkv(x_TD, others_TS1)
        query_THD = kernels.rotate_and_store(qkv_TX, kv, table, tokens, self.rotary, norms, eps)
        seen_TX = kernels.attend(query_THD, kv, table, tokens, layer.attention.scaling, layer.window, splits)
        return layer.out(seen_TX, others_TS1)

    def __call__(self, token_T: Tensor, tokens: Tokens, kv: Tensor, table: Tensor, splits: int) -> Tensor:
        """The hidden states [T, D]; `kv` is [layers, 2, pages, heads, PAGE, size]."""
        residual_TD = nn.functional.embedding(token_T, self.embedding.weight)
        others_TS1 = self.slots.others(tokens.slot_T) if self.slots and tokens.slot_T is not None else None
        x_TD: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x_TD = kernels.add_norm(x_TD, residual_TD, layer.before.weight, _eps(layer.before), self.dtype)
            x_TD = self.attend(layer, x_TD, kv[number], table, tokens, splits, others_TS1)
            x_TD = kernels.add_norm(x_TD, residual_TD, layer.between.weight, _eps(layer.between), self.dtype)
            x_TD = layer.down(kernels.gate(layer.gate_up(x_TD, others_TS1)), others_TS1)
        return kernels.add_norm(x_TD, residual_TD, self.norm.weight, _eps(self.norm), residual_TD.dtype)


def fused(reader: TokenReader, *, fold: bool = True) -> FusedDecoder | None:
    """The decoder of a policy in few kernels, or None where that is not what it computes."""
    if not _has_the_form(reader):
        return None
    decoder = FusedDecoder(reader, fold=fold)
    return decoder if _agrees(decoder) else None


def _has_the_form(reader: TokenReader) -> bool:
    """Whether the modules are there, and none that would be left out."""
    decoder: Any = reader.policy.decoder
    if {name for name, _ in decoder.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return False
    size = reader.head_size
    if size & (size - 1) or not 32 <= size * reader.dtype.itemsize <= 512 or length_matters(decoder.config):
        return False
    whole = type(decoder.embed_tokens) is nn.Embedding and _unadapted(decoder.norm)
    return whole and all(sight.chunk is None for sight in reader.sights) and all(map(_usual, decoder.layers))


def _usual(layer: Any) -> bool:
    children = {name for name, _ in layer.named_children()}
    if children != LAYER or list(layer.self_attn.parameters(recurse=False)):  # such as sinks
        return False
    attention = dict(layer.self_attn.named_children())
    feed_forward = dict(layer.mlp.named_children())
    linear = [*(attention.get(name) for name in ATTENTION), *(feed_forward.get(name) for name in FEED_FORWARD)]
    norms = NORMS & set(attention)
    act: Any = feed_forward.pop("act_fn", None)
    x = torch.linspace(-4, 4, 9)
    return (
        set(attention) - norms == ATTENTION
        and norms in (set(), NORMS)
        and set(feed_forward) == FEED_FORWARD
        and all(map(_plain, linear))
        and callable(act)
        and torch.allclose(act(x), nn.functional.silu(x))
        and _unadapted(layer.input_layernorm)
        and _unadapted(layer.post_attention_layernorm)
        and all(layer.self_attn.get_submodule(name).weight.shape == (layer.self_attn.head_dim,) for name in norms)
    )


def _unadapted(norm: nn.Module) -> bool:
    """Whether a norm is the model's own: a copy that is trained in its place would be left out."""
    return not type(norm).__module__.startswith("peft.")


def _plain(layer: Any) -> bool:
    """A linear layer, bare or with a plain LoRA adapter."""
    if not isinstance(base(layer), nn.Linear):
        return False
    if not hasattr(layer, "lora_A"):
        return type(layer) is nn.Linear
    variant = ACTOR in layer.lora_variant or layer.lora_bias.get(ACTOR)
    return type(base(layer)) is nn.Linear and not variant and not layer.disable_adapters


@torch.inference_mode()
def _agrees(decoder: FusedDecoder) -> bool:
    """Whether every layer's attention and the whole decoder compute what the model's own code does."""
    reader = decoder.reader
    policy, device = reader.policy, reader.device
    length = min(TRIED, reader.context)
    generator = torch.Generator().manual_seed(0)
    token_T = torch.randint(0, reader.vocabulary, (length,), generator=generator).to(device)
    size = block_size(policy.decoder.config.num_attention_heads // reader.num_heads)
    first_B = torch.arange(0, length, size, dtype=torch.int32, device=device)
    position_T = torch.arange(length, dtype=torch.int32, device=device)
    tokens = Tokens(position_T, torch.zeros_like(position_T), first_B, (length - first_B).clamp(max=size), size)
    pages = -(-length // PAGE)
    table = torch.arange(pages, dtype=torch.int32, device=device)[None]
    shape = (reader.num_layers, 2, pages, reader.num_heads, PAGE, reader.head_size)
    kv = torch.zeros(shape, dtype=reader.dtype, device=device)
    x_TD = torch.randn(length, policy.decoder.config.hidden_size, generator=generator).to(device, reader.dtype)
    policy.row_reader.attend_with(policy.row_reader.plain_attention)
    with reader.precision():
        turned = policy.decoder.rotary_emb(x_TD[None], position_T[None].long())
        for number, layer in enumerate(decoder.layers):
            loud_TD = x_TD * _loudness(layer, x_TD, reader.head_size)
            mask_TT = _mask(position_T, layer.window, reader.dtype)
            own_TD = layer.attention(loud_TD[None], position_embeddings=turned, attention_mask=mask_TT)[0][0]
            if not _close(decoder.attend(layer, loud_TD, kv[number], table, tokens, 1), own_TD, reader.dtype):
                return False
        own_TD = policy.decoder(input_ids=token_T[None], use_cache=False).last_hidden_state[0]
    return _close(decoder(token_T, tokens, kv, table, 2), own_TD, reader.dtype)


def _loudness(layer: FusedLayer, x_TD: Tensor, size: int) -> float:
    """A factor for a layer's input with which it looks at some tokens clearly more than at others."""
    if layer.norms is not None:
        return 1.0
    qkv_TX = layer.qkv(x_TD).float()
    spread = float(qkv_TX.std() ** 2 * size**0.5 * layer.attention.scaling)
    return min(float((3.0 / max(spread, 1e-6)) ** 0.5), 1000.0)


def _mask(position_T: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    distance_TT = position_T[:, None] - position_T
    seen_TT = (distance_TT >= 0) & (distance_TT < window)
    return torch.zeros_like(distance_TT, dtype=dtype).masked_fill_(~seen_TT, torch.finfo(dtype).min)[None, None]


def _close(ours: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
    apart = (ours.float() - own.float()).square().mean().sqrt()
    tolerance = TOLERANCE if torch.finfo(dtype).eps > 1e-5 else 1e-3
    return bool(apart <= tolerance * own.float().square().mean().sqrt())


def _eps(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
