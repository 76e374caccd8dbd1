"""The attention of a row: node q sees node k exactly when `k <= q < end[k]`.

The mask comes in two forms that say the same: a dense one for SDPA and eager attention,
and a `BlockMask` for FlexAttention, whose table of 128x128 blocks follows from the
smallest and largest `end` of each block without looking at single tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bough.trees.mixers import Sight

BLOCK = 128


def dense_mask(end_L: Tensor, position_L: Tensor, sight: Sight, dtype: torch.dtype) -> Tensor:
    """An additive mask [1, 1, L, L]: 0 where query q sees key k, -inf elsewhere."""
    index_L = torch.arange(len(end_L), device=end_L.device)
    sees_LL = _mask_mod(end_L, position_L, sight)(None, None, index_L[:, None], index_L[None, :])
    return torch.zeros_like(sees_LL, dtype=dtype).masked_fill_(~sees_LL, float("-inf"))[None, None]


def block_mask(end_L: Tensor, position_L: Tensor, sight: Sight) -> BlockMask:
    """The same as a `BlockMask`; L is a multiple of `BLOCK`."""
    low_K, high_K = end_L.view(-1, BLOCK).aminmax(dim=1)
    index_K = torch.arange(len(low_K), device=end_L.device)
    index_Q1 = index_K[:, None]
    # Below the diagonal every key comes before every query, so only the ends decide.
    some_QK = (index_K == index_Q1) | (index_K < index_Q1) & (high_K > index_Q1 * BLOCK)
    full_QK = (index_K < index_Q1) & (low_K >= (index_Q1 + 1) * BLOCK)
    since_L = sight.since(position_L)
    if since_L is not None:
        shallow_K, deep_K = position_L.view(-1, BLOCK).aminmax(dim=1)
        first_Q, last_Q = since_L.view(-1, BLOCK).aminmax(dim=1)
        some_QK &= deep_K >= first_Q[:, None]
        full_QK &= shallow_K >= last_Q[:, None]
    return BlockMask.from_kv_blocks(
        *_listed(some_QK & ~full_QK),
        *_listed(full_QK),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_mod(end_L, position_L, sight),
        seq_lengths=(len(end_L), len(end_L)),
    )


def flex_tree_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """FlexAttention in the form in which transformers models call their attention.

    transformers has one too, but compiles it for the first row's shape, then again for
    any shape; with several masks and gradient modes that runs into the recompilation limit.
    """
    # Under autocast the rotary embedding leaves these two in float32, where the kernel is slow.
    query, key = query.to(value.dtype), key.to(value.dtype)
    # In a layer that is being compiled, all of this becomes part of it; to mark sizes would take it apart there.
    attend: Callable[..., Any] = flex_attention
    if not torch.compiler.is_compiling():
        attend = _flex()
        for states in (query, key, value):
            # A row of as many blocks as there are heads must not be taken for a rule.
            torch._dynamo.mark_static(states, [1, 3])
    out, aux = attend(
        query,
        key,
        value,
        score_mod=None if softcap is None else lambda score, *_: softcap * torch.tanh(score / softcap),
        block_mask=attention_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=s_aux is not None),
    )
    if s_aux is not None:  # a sink takes its part of the softmax and gives nothing back
        out = out * torch.sigmoid(aux.lse - s_aux[None, :, None])[..., None].to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


def sdpa_tree_attention(
    module: nn.Module,  # noqa: ARG001  as transformers calls it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """SDPA for a dense mask on the CPU: a block of queries at a time, with the keys that any of them sees.

    A dense mask by itself costs every pair of tokens, seen or not: for one episode twice
    what is needed, for a row of several far more.
    """
    outputs = []
    for begin in range(0, query.shape[2], BLOCK):
        block = slice(begin, begin + BLOCK)
        mask = attention_mask[:, :, block]
        seen = (mask == 0).any(2).flatten().nonzero()[:, 0]
        out = scaled_dot_product_attention(
            query[:, :, block],
            key.index_select(2, seen),
            value.index_select(2, seen),
            attn_mask=mask.index_select(3, seen),
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(out)
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


@cache
def _flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def _mask_mod(end_L: Tensor, position_L: Tensor, sight: Sight) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
    since_L = sight.since(position_L)

    def sees(_batch: Any, _head: Any, q: Tensor, k: Tensor) -> Tensor:
        visible = (k <= q) & (q < end_L[k])
        return visible if since_L is None else visible & (position_L[k] >= since_L[q])

    return sees


def _listed(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries: how many blocks of keys are set, and which, those first."""
    table = blocks_QK[None, None].to(torch.int32)
    return table.sum(-1, dtype=torch.int32), table.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
