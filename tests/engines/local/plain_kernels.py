"""What `bough.engines.local.kernels` computes, in plain torch: for machines without Triton, and to compare with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from bough.engines.local.pages import PAGE, Tokens
from bough.engines.local.schedule import SamplingParams, draw


def add_norm(x_TD: Tensor | None, residual_TD: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    if x_TD is not None:
        residual_TD += x_TD
    value_TD = residual_TD.float()
    normal_TD = (value_TD * (value_TD.square().mean(-1, keepdim=True) + eps).rsqrt()).to(residual_TD.dtype)
    return (normal_TD.float() * weight_D.float()).to(dtype)


def rotate_and_store(qkv_TX, kv, table, tokens: Tokens, rotary, norms, eps: float) -> Tensor:
    groups, size = kv.shape[2], kv.shape[4]
    heads = qkv_TX.shape[1] // size - 2 * groups
    query, key, value = qkv_TX.view(len(qkv_TX), -1, size).float().split([heads, groups, groups], dim=1)
    if norms is not None:
        query = add_norm(None, query.to(qkv_TX.dtype), norms[0], eps, torch.float32)
        key = add_norm(None, key.to(qkv_TX.dtype), norms[1], eps, torch.float32)
    cosine, sine = (part[tokens.position_T.long()][:, None] for part in rotary)
    query, key = (x * cosine + torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1) * sine for x in (query, key))
    position_T = tokens.position_T.long()
    page_T = table[tokens.row_T.long(), position_T // PAGE].long()
    kv[0, page_T, :, position_T % PAGE] = key.to(kv.dtype)
    kv[1, page_T, :, position_T % PAGE] = value.to(kv.dtype)
    return query.to(kv.dtype)


def attend(query_THD, kv, table, tokens: Tokens, scaling: float, window: int, splits: int) -> Tensor:
    out_THD = torch.zeros_like(query_THD)
    repeats = query_THD.shape[1] // kv.shape[2]
    rows, positions = tokens.row_T.tolist(), tokens.position_T.tolist()
    for first, count in zip(tokens.first_B.tolist(), tokens.count_B.tolist(), strict=True):
        if not count:
            continue
        row, position, mine = rows[first], positions[first], slice(first, first + count)
        assert rows[mine] == [row] * count
        assert positions[mine] == list(range(position, position + count))
        since, end = max(position - window + 1, 0), position + count
        pages = table[row, : (end - 1) // PAGE + 1].long()
        key, value = kv[:, pages].transpose(1, 2).flatten(2, 3)[:, :, since:end]
        key, value = (x.repeat_interleave(repeats, 0).float() for x in (key, value))
        distance_QK = tokens.position_T[mine, None] - torch.arange(since, end, device=kv.device)
        unseen_QK = (distance_QK < 0) | (distance_QK >= window)
        score_HQK = query_THD[mine].float().transpose(0, 1) @ key.mT * scaling
        weight_HQK = score_HQK.masked_fill(unseen_QK, float("-inf")).softmax(-1)
        out_THD[mine] = (weight_HQK @ value).transpose(0, 1).to(out_THD.dtype)
    return out_THD.flatten(1)


def gate(both_TF: Tensor) -> Tensor:
    left, right = both_TF.chunk(2, dim=1)
    return silu(left) * right


def choose(logits_NV: Tensor, temperature_N: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    nothing = torch.zeros_like(uniform_N)
    return draw(logits_NV, SamplingParams(uniform_N, temperature_N, nothing + 1, nothing, nothing), cut=False)


def splits_for(*_: object) -> int:
    return 1
