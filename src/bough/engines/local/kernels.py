"""The Triton kernels of a decoder's step: everything in it but matrix products.

Each works on T concatenated tokens, or on N draws, of any episodes. `table` and the pages
are those of `pages.py`. Sums are in float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bough.engines.local.pages import PAGE, Tokens

VOCABULARY = 4096  # logits of one program of a draw
MOST_SPLITS = 16


@triton.jit
def _add_norm(x, residual, weight, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    kind = residual.dtype.element_ty
    value = tl.load(residual + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
        value = value.to(kind)
        tl.store(residual + row * width + column, value, mask=inside)
        value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    normal = (value * scale).to(kind).to(tl.float32)
    normal *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, normal.to(out.dtype.element_ty), mask=inside)


def add_norm(x_TD: Tensor | None, residual_TD: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Adds `x_TD` to the residual, in place, and gives its RMS norm times the weight."""
    tokens, width = residual_TD.shape
    out_TD = torch.empty(tokens, width, dtype=dtype, device=residual_TD.device)
    block = triton.next_power_of_2(width)
    _add_norm[(tokens,)](
        residual_TD if x_TD is None else x_TD, residual_TD, weight_D, out_TD, width, eps,
        ADD=x_TD is not None, BLOCK=block, num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return out_TD


@triton.jit
def _rotate_and_store(
    qkv, query, kv, cosine, sine, position_T, row_T, table, query_norm, key_norm, eps, width, plane,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = tl.arange(0, SIZE // 2)
    high = low + SIZE // 2
    here = qkv + (token * (HEADS + 2 * GROUPS) + head) * SIZE
    left, right = tl.load(here + low).to(tl.float32), tl.load(here + high).to(tl.float32)
    position = tl.load(position_T + token).to(tl.int64)
    if head < HEADS + GROUPS:
        if NORM:
            kind = qkv.dtype.element_ty
            scale = tl.rsqrt((tl.sum(left * left, 0) + tl.sum(right * right, 0)) / SIZE + eps)
            norm = query_norm if head < HEADS else key_norm
            left = (left * scale).to(kind).to(tl.float32) * tl.load(norm + low).to(tl.float32)
            right = (right * scale).to(kind).to(tl.float32) * tl.load(norm + high).to(tl.float32)
        old = left
        left = old * tl.load(cosine + position * SIZE + low) - right * tl.load(sine + position * SIZE + low)
        right = right * tl.load(cosine + position * SIZE + high) + old * tl.load(sine + position * SIZE + high)
    if head < HEADS:
        there = query + (token * HEADS + head) * SIZE
        tl.store(there + low, left.to(query.dtype.element_ty))
        tl.store(there + high, right.to(query.dtype.element_ty))
    else:
        group = (head - HEADS) % GROUPS
        page = tl.load(table + tl.load(row_T + token).to(tl.int64) * width + position // PAGE).to(tl.int64)
        there = kv + ((head - HEADS) // GROUPS) * plane + ((page * GROUPS + group) * PAGE + position % PAGE) * SIZE
        tl.store(there + low, left.to(kv.dtype.element_ty))
        tl.store(there + high, right.to(kv.dtype.element_ty))


def rotate_and_store(
    qkv_TX: Tensor,
    kv: Tensor,
    table: Tensor,
    tokens: Tokens,
    rotary: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Turns queries and keys by their positions and puts keys and values into the pages; the queries [T, H, D]."""
    groups, size = kv.shape[2], kv.shape[4]
    heads = qkv_TX.shape[1] // size - 2 * groups
    query_THD = torch.empty(len(qkv_TX), heads, size, dtype=kv.dtype, device=kv.device)
    query_norm, key_norm = norms or (qkv_TX, qkv_TX)
    _rotate_and_store[(len(qkv_TX), heads + 2 * groups)](
        qkv_TX, query_THD, kv, *rotary, tokens.position_T, tokens.row_T, table, query_norm, key_norm, eps,
        table.shape[1], kv.stride(0), HEADS=heads, GROUPS=groups, SIZE=size, PAGE=PAGE, NORM=norms is not None,
        num_warps=1,
    )  # fmt: skip
    return query_THD


@triton.jit
def _attend(
    query, kv, out, partial, row_T, position_T, first_B, count_B, table, width, plane, scaling, window, blocks,
    GROUPS: tl.constexpr, REPEATS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    block, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(count_B + block)
    if count > 0:
        first = tl.load(first_B + block).to(tl.int64)
        start = tl.load(position_T + first)
        row = tl.load(row_T + first).to(tl.int64)
        m, d, n = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, PAGE)
        token, repeat = m // PADDED, m % PADDED
        real = (token < count) & (repeat < REPEATS)
        place = ((first + token) * GROUPS + group) * REPEATS + repeat
        q = tl.load(query + place[:, None] * SIZE + d[None, :], mask=real[:, None], other=0.0)
        position = start + token
        # Pages from the first that any of these tokens sees to the last, in equal parts.
        oldest = tl.maximum(start - window + 1, 0) // PAGE
        num_pages = (start + count - 1) // PAGE + 1 - oldest
        part = tl.cdiv(num_pages, SPLITS)
        begin = oldest + split * part
        end = tl.minimum(begin + part, oldest + num_pages)
        peak = tl.full([ROWS], -1.0e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, SIZE], tl.float32)
        for number in range(begin, end):
            page = tl.load(table + row * width + number).to(tl.int64)
            here = kv + (page * GROUPS + group) * PAGE * SIZE + n[:, None] * SIZE + d[None, :]
            key = tl.load(here)
            score = tl.dot(q, tl.trans(key), input_precision="ieee") * scaling
            at = number * PAGE + n
            seen = (at[None, :] <= position[:, None]) & (at[None, :] > position[:, None] - window)
            score = tl.where(seen, score, -1.0e30)
            new = tl.maximum(peak, tl.max(score, 1))
            weight = tl.where(seen, tl.exp(score - new[:, None]), 0.0)
            fade = tl.exp(peak - new)
            total = total * fade + tl.sum(weight, 1)
            value = tl.load(here + plane)
            sums = sums * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            peak = new
        if SPLITS == 1:
            result = sums / total[:, None]
            tl.store(out + place[:, None] * SIZE + d[None, :], result.to(out.dtype.element_ty), mask=real[:, None])
        else:
            # [split, token, head, size + 2]: sums, then their peak and total.
            there = partial + (place + split.to(tl.int64) * blocks * GROUPS * REPEATS) * (SIZE + 2)
            tl.store(there[:, None] + d[None, :], sums, mask=real[:, None])
            tl.store(there + SIZE, peak, mask=real)
            tl.store(there + SIZE + 1, total, mask=real)


@triton.jit
def _join(partial, out, places, SIZE: tl.constexpr, SPLITS: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, SIZE)
    here = partial + (s.to(tl.int64) * places + place) * (SIZE + 2)
    peak, total = tl.load(here + SIZE), tl.load(here + SIZE + 1)
    share = tl.exp(peak - tl.max(peak, 0))
    sums = tl.sum(tl.load(here[:, None] + d[None, :]) * share[:, None], 0)
    tl.store(out + place * SIZE + d, (sums / tl.sum(total * share, 0)).to(out.dtype.element_ty))


def attend(
    query_THD: Tensor, kv: Tensor, table: Tensor, tokens: Tokens, scaling: float, window: int, splits: int
) -> Tensor:
    """The outputs [T, H * D] of attention to the pages of each token's episode, up to the token itself."""
    num_tokens, heads, size = query_THD.shape
    groups = kv.shape[2]
    repeats = heads // groups
    padded = triton.next_power_of_2(repeats)
    rows = max(tokens.size * padded, 16)
    out_THD = torch.empty_like(query_THD)
    partial = out_THD
    if splits > 1:
        partial = torch.empty(splits, num_tokens, heads, size + 2, dtype=torch.float32, device=kv.device)
    _attend[(len(tokens.first_B), groups, splits)](
        query_THD, kv, out_THD, partial, tokens.row_T, tokens.position_T, tokens.first_B, tokens.count_B, table,
        table.shape[1], kv.stride(0), scaling, window, num_tokens,
        GROUPS=groups, REPEATS=repeats, PADDED=padded, SIZE=size, ROWS=rows, PAGE=PAGE, SPLITS=splits,
        num_warps=4, num_stages=2 if size > 64 else 3,
    )  # fmt: skip
    if splits > 1:
        _join[(num_tokens * heads,)](partial, out_THD, num_tokens * heads, SIZE=size, SPLITS=splits, num_warps=1)
    return out_THD.flatten(1)


@triton.jit
def _gate(both, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(both + token * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + token * 2 * width + width + column, mask=inside, other=0.0)
    kind = both.dtype.element_ty
    open_ = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + token * width + column, (open_ * up.to(tl.float32)).to(kind), mask=inside)


def gate(both_TF: Tensor) -> Tensor:
    """SiLU of the first half of the columns, times the second half."""
    tokens, width = both_TF.shape[0], both_TF.shape[1] // 2
    out_TF = torch.empty(tokens, width, dtype=both_TF.dtype, device=both_TF.device)
    _gate[(tokens, triton.cdiv(width, 1024))](both_TF, out_TF, width, BLOCK=1024, num_warps=4)
    return out_TF


@triton.jit
def _weigh(logits, temperature_N, peaks, sums, best, vocabulary, blocks, BLOCK: tl.constexpr):
    n, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_N + n).to(tl.float32)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    column = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + n * vocabulary + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32)
    logit = logit / temperature
    peak = tl.max(logit, 0)
    tl.store(peaks + n * blocks + block, peak)
    tl.store(best + n * blocks + block, block * BLOCK + tl.argmax(logit, 0))
    tl.store(sums + n * blocks + block, tl.sum(tl.exp(logit - peak), 0))


@triton.jit
def _choose(
    logits, temperature_N, uniform_N, peaks, sums, best, token_N, logprob_N, vocabulary, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    b, c = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
    given = tl.load(temperature_N + n).to(tl.float32)
    temperature = tl.where(given > 0, given, 1.0)
    peak_B = tl.load(peaks + n * blocks + b, mask=b < blocks, other=-float("inf"))
    peak = tl.max(peak_B, 0)
    sum_B = tl.load(sums + n * blocks + b, mask=b < blocks, other=0.0) * tl.exp(peak_B - peak)
    total = tl.sum(sum_B, 0)
    running = tl.cumsum(sum_B, 0)
    target = tl.load(uniform_N + n).to(tl.float32) * total
    # The first block whose running sum passes the target; rounding may have put it too high.
    block = tl.minimum(tl.sum((running <= target).to(tl.int32), 0), blocks - 1)
    before = tl.sum(tl.where(b < block, sum_B, 0.0), 0)
    column = block * BLOCK + c
    logit = tl.load(logits + n * vocabulary + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32)
    weight = tl.exp(logit / temperature - peak)
    passed = (before + tl.cumsum(weight, 0) > target) & (weight > 0)
    last = tl.max(tl.where(weight > 0, c, 0), 0)
    drawn = block * BLOCK + tl.minimum(tl.min(tl.where(passed, c, BLOCK), 0), last)
    likeliest = tl.load(best + n * blocks + tl.argmax(peak_B, 0))
    token = tl.where(given > 0, drawn, likeliest)
    chosen = tl.load(logits + n * vocabulary + token).to(tl.float32) / temperature
    tl.store(token_N + n, token.to(tl.int64))
    tl.store(logprob_N + n, chosen - peak - tl.log(total))


def choose(logits_NV: Tensor, temperature_N: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """A token for each row and its log-probability, as `draw` without a cut, in two kernels."""
    number, vocabulary = logits_NV.shape
    blocks = triton.cdiv(vocabulary, VOCABULARY)
    device = logits_NV.device
    peaks, sums = torch.empty(2, number, blocks, device=device)
    best = torch.empty(number, blocks, dtype=torch.int64, device=device)
    token_N = torch.empty(number, dtype=torch.int64, device=device)
    logprob_N = torch.empty(number, device=device)
    _weigh[(number, blocks)](
        logits_NV, temperature_N, peaks, sums, best, vocabulary, blocks, BLOCK=VOCABULARY, num_warps=4
    )
    _choose[(number,)](
        logits_NV, temperature_N, uniform_N, peaks, sums, best, token_N, logprob_N, vocabulary, blocks,
        BLOCK=VOCABULARY, BLOCKS=triton.next_power_of_2(blocks), num_warps=8,
    )  # fmt: skip
    return token_N, logprob_N


def splits_for(blocks: int, groups: int, device: torch.device) -> int:
    """Into how many parts each episode's keys are cut, so that few episodes still fill the GPU."""
    if device.type != "cuda":
        return 1
    wanted = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return int(min(triton.next_power_of_2(max(wanted // max(blocks * groups, 1), 1)), MOST_SPLITS))
