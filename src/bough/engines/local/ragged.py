"""Keys and values on the CPU: for each episode a buffer that grows, attended to one episode at a time.

What is computed for a token is the same to the last bit whatever is computed beside it,
and however the tokens before it were cut into pieces. For that, every matrix product
here has a fixed depth and width, sums go over fixed blocks one after the other, and what
lies behind a token adds exact zeros. Matrix products with a single row are the one case
that BLAS treats differently, so there are always two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bough.engines.local.draw import Wishes, cuts, draw, uniform
from bough.engines.local.reader import Reader
from bough.engines.local.schedule import Resident, Span
from bough.trees.layers import Sight

BLOCK = 128  # keys that are looked at together
QUERIES = 128  # queries that are looked at together
ROOM = 4 * BLOCK  # buffers grow by this much, so that not every turn copies


class RaggedStore:
    """A buffer [layers, 2, blocks, heads, BLOCK, size] for each resident."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def cost(self, tokens: int) -> int:
        return -(-tokens // ROOM) * ROOM

    def allocate(self, resident: Resident, tokens: int) -> None:
        reader, old = self.reader, resident.place
        blocks = self.cost(tokens) // BLOCK
        shape = (reader.num_layers, 2, blocks, reader.num_heads, BLOCK, reader.head_size)
        # Zeros, for a weight of nothing times whatever was in memory may be NaN.
        resident.place = torch.zeros(shape, dtype=reader.dtype)
        resident.capacity = blocks * BLOCK
        if old is not None and resident.ids:
            full = -(-len(resident.ids) // BLOCK)
            resident.place[:, :, :full] = old[:, :, :full]

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        first, last = begin // BLOCK, -(-end // BLOCK)
        target.place[:, :, first:last] = source.place[:, :, first:last]

    def free(self, resident: Resident) -> None:
        resident.place, resident.capacity = None, 0


class RaggedRunner:
    """Reads all spans in one row of tokens, prompts and single tokens alike."""

    mixes = True

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def run(self, spans: Sequence[Span]) -> list[tuple[int, float] | None]:
        """Computes the spans; for each that draws, the token and its log-probability."""
        tokens = [token for span in spans for token in span.tokens]
        positions = [len(span.resident.ids) + i for span in spans for i in range(len(span.tokens))]
        padding = [0] * (len(tokens) == 1)
        hidden_TD = self.reader.hidden(
            torch.tensor([tokens + padding]),
            torch.tensor([positions + padding]),
            RaggedCache(spans, self.reader.sights),
        )[0]
        ends = [0]
        for span in spans:
            ends.append(ends[-1] + len(span.tokens))
            span.resident.ids.extend(span.tokens)
        drawing = [(span, end - 1) for span, end in zip(spans, ends[1:], strict=True) if span.draws]
        drawn = iter(self._draw(hidden_TD, drawing))
        return [next(drawn) if span.draws else None for span in spans]

    def _draw(self, hidden_TD: Tensor, drawing: list[tuple[Span, int]]) -> list[tuple[int, float]]:
        if not drawing:
            return []
        rows = [row for _, row in drawing]
        logits_MV = self.reader.logits(hidden_TD[rows + rows[:1] * (len(rows) == 1)])
        requests = [span.request for span, _ in drawing]
        wishes = [(r.sampling, uniform(r.seed, len(r.completion_ids))) for r in requests]
        # Sorting is for those alone who asked for it; nobody's draw depends on the others.
        result: list[tuple[int, float]] = [(0, 0.0)] * len(rows)
        for cut in (False, True):
            mine = [i for i, request in enumerate(requests) if cuts(request.sampling) == cut]
            if mine:
                token_M, logprob_M = draw(logits_MV[mine], Wishes.of([wishes[i] for i in mine]), cut=cut)
                for i, token, logprob in zip(mine, token_M.tolist(), logprob_M.tolist(), strict=True):
                    result[i] = (token, logprob)
        return result


class RaggedCache:
    """The spans of one pass, as a model's cache."""

    def __init__(self, spans: Sequence[Span], sights: Sequence[Sight]) -> None:
        self.pieces: list[tuple[int, int, int, Tensor]] = []
        self.num_tokens = 0
        for span in spans:
            begin, self.num_tokens = self.num_tokens, self.num_tokens + len(span.tokens)
            self.pieces.append((begin, self.num_tokens, len(span.resident.ids), span.resident.place))
        self.sights = sights
        self._bias: dict[tuple[int, int, Sight], Tensor] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[RaggedLayer, None]:
        """Puts the new keys and values [1, G, T, D] where they belong."""
        for states, kind in ((keys, 0), (values, 1)):
            states_TGD = states[0].transpose(0, 1)
            for begin, end, position, buffer in self.pieces:
                place = buffer[layer, kind]
                if end - begin == 1:
                    place[position // BLOCK, :, position % BLOCK] = states_TGD[begin]
                else:
                    index = torch.arange(position, position + end - begin)
                    place[index // BLOCK, :, index % BLOCK] = states_TGD[begin:end].to(place.dtype)
        return RaggedLayer(self, layer), None

    def bias(self, begin: int, end: int, sight: Sight) -> Tensor:
        """What is added to the scores [blocks, queries, BLOCK] of the tokens from `begin` to `end`: 0 or -inf."""
        if (begin, end, sight) not in self._bias:
            query_Q1 = torch.arange(begin, end)[:, None]
            key_K = torch.arange(-(-end // BLOCK) * BLOCK)
            sees_QK = key_K <= query_Q1
            since_Q1 = sight.since(query_Q1)
            if since_Q1 is not None:
                sees_QK &= key_K >= since_Q1
            bias_QK = torch.zeros(sees_QK.shape).masked_fill_(~sees_QK, float("-inf"))
            self._bias[begin, end, sight] = bias_QK.view(end - begin, -1, BLOCK).transpose(0, 1)
        return self._bias[begin, end, sight]


class RaggedLayer:
    """One layer's keys and values of all spans."""

    def __init__(self, cache: RaggedCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def attend(self, query: Tensor, scaling: float, softcap: float | None) -> Tensor:
        out_TGRD: Tensor | None = None
        for begin, end, position, buffer in self.cache.pieces:
            keys, values = buffer[self.layer]
            groups = keys.shape[1]
            if out_TGRD is None:
                shape = (query.shape[2], groups, query.shape[1] // groups, query.shape[3])
                out_TGRD = query.new_zeros(shape)
            for first in range(begin, end, QUERIES):
                last = min(first + QUERIES, end)
                query_GRQD = query[0, :, first:last].view(groups, -1, last - first, query.shape[3])
                start = position + first - begin
                bias = self.cache.bias(start, start + last - first, self.cache.sights[self.layer])
                out_GRQD = attend(query_GRQD, keys, values, bias, scaling, softcap)
                out_TGRD[first:last] = out_GRQD.permute(2, 0, 1, 3)
        assert out_TGRD is not None
        return out_TGRD.flatten(1, 2)[None]


def attend(
    query_GRQD: Tensor, keys_CGKD: Tensor, values_CGKD: Tensor, bias_CQK: Tensor, scaling: float, softcap: float | None
) -> Tensor:
    """Attention of Q tokens in G groups of R heads to C blocks of keys and values."""
    groups, repeats, queries, size = query_GRQD.shape
    blocks = len(bias_CQK)
    rows = repeats * queries
    query_GMD = query_GRQD.to(keys_CGKD.dtype).reshape(groups, rows, size)
    if rows == 1:
        query_GMD = query_GMD.expand(-1, 2, -1)
    scores_CGMK = (query_GMD * scaling) @ keys_CGKD[:blocks].transpose(2, 3)
    if softcap is not None:
        scores_CGMK = (scores_CGMK / softcap).tanh_().mul_(softcap)
    if rows == 1:
        scores_CGMK += bias_CQK[:, None]
    else:
        scores_CGMK.view(blocks, groups, repeats, queries, BLOCK).add_(bias_CQK[:, None, None])
    weights_CGMK = scores_CGMK.sub_(scores_CGMK.amax((0, 3), keepdim=True)).exp_()
    # Running sums go from block to block in order; in what order a plain sum goes depends on the number of rows.
    total_GM1 = weights_CGMK.sum(3, keepdim=True).cumsum(0)[-1]
    out_GMD = (weights_CGMK @ values_CGKD[:blocks]).cumsum(0)[-1] / total_GM1
    return out_GMD[:, :rows].reshape(groups, repeats, queries, size)
