"""Attention over the rows of a cache, which also puts the new keys and values there, as one operation.

To torch.compile it is a single node that changes the cache in place: a layer around it
becomes one graph, and nothing is copied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bough.trees.layers import Sight

NONE = 0  # no window, no chunk; operations take numbers only


@torch.library.custom_op("bough::attend_rows", mutates_args=("kv",))
def attend_rows(
    query_THD: Tensor,
    keys_TGD: Tensor,
    values_TGD: Tensor,
    kv: Tensor,
    layer: int,
    position_T: Tensor,
    row_T: Tensor,
    row_N: Tensor,
    end_N: Tensor,
    start_N1: Tensor,
    first_N1: Tensor,
    most: int,
    window: int,
    chunk: int,
    scaling: float,
    softcap: float,
    flash: bool,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """The outputs [T, H, D] of one layer for T tokens of N episodes, concatenated.

    `kv` is [layers, 2, rows, length, heads, size]; `position_T` and `row_T` say where each token
    belongs, `row_N` and `end_N` how much of which row each episode then has, `start_N1` where
    its tokens begin, `first_N1` where its keys begin when all rows are taken as one, `most`
    the most tokens that any of them has.
    """
    keys, values = kv[layer]
    keys[row_T, position_T] = keys_TGD
    values[row_T, position_T] = values_TGD
    if not flash:
        sight = Sight(window=window or None, chunk=chunk or None)
        return _one_by_one(
            query_THD, keys, values, position_T, row_N, end_N, start_N1, sight, scaling, softcap, sinks_H
        )
    sees = {} if window == NONE else {"window_size_left": window - 1, "window_size_right": 0}
    out, norm, *_ = torch.ops.aten._flash_attention_forward(
        query_THD,
        keys.flatten(0, 1),
        values.flatten(0, 1),
        start_N1,
        first_N1,
        most,
        kv.shape[3],
        0.0,
        True,
        False,
        scale=scaling,
        seqused_k=end_N,
        **sees,
    )
    if sinks_H is not None:
        out = out * torch.sigmoid(norm.T - sinks_H.float())[..., None].to(out.dtype)
    return out.contiguous()  # type: ignore[no-any-return]


@attend_rows.register_fake
def _(query_THD: Tensor, *_: object) -> Tensor:
    return query_THD.new_empty(query_THD.shape)


def _one_by_one(
    query_THD: Tensor,
    keys: Tensor,
    values: Tensor,
    position_T: Tensor,
    row_N: Tensor,
    end_N: Tensor,
    start_N1: Tensor,
    sight: Sight,
    scaling: float,
    softcap: float,
    sinks_H: Tensor | None,
) -> Tensor:
    """For what FlashAttention cannot do, among it float32: slow, and no CUDA graph can hold it."""
    outs, starts = [], start_N1.tolist()
    for n, (row, end) in enumerate(zip(row_N.tolist(), end_N.tolist(), strict=True)):
        query = query_THD[starts[n] : starts[n + 1]].transpose(0, 1)
        repeats = query.shape[0] // keys.shape[2]
        key, value = (x[row, :end].transpose(0, 1).repeat_interleave(repeats, 0) for x in (keys, values))
        position_Q1 = position_T[starts[n] : starts[n + 1], None]
        key_L = torch.arange(end, device=query.device)
        sees = key_L <= position_Q1
        if (since := sight.since(position_Q1)) is not None:
            sees &= key_L >= since
        if softcap or sinks_H is not None:
            scores = (query @ key.transpose(1, 2)).float() * scaling
            scores = (scores / softcap).tanh() * softcap if softcap else scores
            scores = scores.masked_fill(~sees, float("-inf"))
            if sinks_H is not None:
                scores = torch.cat([scores, sinks_H.float()[:, None, None].expand(-1, scores.shape[1], 1)], -1)
            out = scores.softmax(-1)[..., :end].to(value.dtype) @ value
        else:
            out = scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=sees, scale=scaling)[0]
        outs.append(out.transpose(0, 1))
    return torch.cat(outs)
