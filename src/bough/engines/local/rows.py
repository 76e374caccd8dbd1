"""Keys and values on a GPU: one tensor in which every episode has a row, read in place by the model's own layers.

Tokens of several episodes are concatenated, whether they are prompts or single
tokens, and FlashAttention is told where each episode's keys begin and how many they are:
nothing is padded to the longest, and nothing gathered. A step in which all draw is one
CUDA graph, the draw included, for each (rounded) number of episodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bough.engines.local.adapters import Stacked
from bough.engines.local.draw import SamplingParams, cuts, draw
from bough.engines.local.pages import Graphs, rounded
from bough.engines.local.reader import TokenReader
from bough.engines.local.schedule import Resident, Span, Store, draw_next

TOGETHER = 16_384  # tokens of prompts that are read together
NO_SAMPLING = [0.0, 1.0, 1.0, 0.0, 0.0]


class RowsStore(Store):
    """`kv` is [layers, 2, rows, length, heads, size]. A resident's place is its row, and its cost 1.

    There is one row more than residents: padding is computed there.
    """

    def __init__(self, reader: TokenReader, *, num_rows: int, length: int) -> None:
        self.num_rows, self.length = num_rows, length
        shape = (reader.num_layers, 2, num_rows + 1, length, reader.num_heads, reader.head_size)
        self.kv = torch.zeros(shape, dtype=reader.dtype, device=reader.device)
        self._free = list(range(num_rows))

    def cost(self, tokens: int) -> int:  # noqa: ARG002
        return 1

    def allocate(self, resident: Resident, tokens: int) -> None:  # noqa: ARG002
        resident.place, resident.capacity = heapq.heappop(self._free), 1

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        self.kv[:, :, target.place, begin:end] = self.kv[:, :, source.place, begin:end]

    def free(self, resident: Resident) -> None:
        heapq.heappush(self._free, resident.place)
        super().free(resident)


class RowsRunner:
    """Reads prompts together, and draws for all who draw at once."""

    mixes = False
    chunk = 1 << 40

    def __init__(self, reader: TokenReader, store: RowsStore, *, graphs: bool) -> None:
        self.reader, self.store = reader, store
        self.flash = flash_attends(reader)
        most = rounded(store.num_rows)
        # For each drawn token: token, position, row, the slot of its adapter and five sampling parameters; float64 is
        # exact for all of them.
        self._inputs = torch.zeros(9, most, dtype=torch.float64, device=reader.device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=reader.device)
        self._graphs = Graphs(self._draw_for) if graphs and self.flash else None
        self._version = 0

    def run(self, spans: Sequence[Span]) -> list[list[tuple[int, float]]]:
        """Computes the spans; for each that draws, the token and its log-probability."""
        if self._graphs and self._version != self.reader.adapters.slots.version:
            self._graphs.forget()
            self._version = self.reader.adapters.slots.version
        drawn: dict[int, tuple[int, float]] = {}
        singles = [span for span in spans if len(span.tokens) == 1 and span.draws]
        for batch in batches([span for span in spans if len(span.tokens) > 1 or not span.draws]):
            drawn |= self._read(batch)
        if singles:
            drawn |= self._draw(singles) if self.flash else self._read(singles)
        for span in spans:
            span.resident.ids.extend(span.tokens)
        return [[drawn[id(span)]] if span.draws else [] for span in spans]

    def _draw(self, spans: Sequence[Span]) -> dict[int, tuple[int, float]]:
        number, slots = rounded(len(spans)), self.reader.adapters.slots
        columns = [
            [
                span.tokens[0],
                len(span.resident.ids),
                span.resident.place,
                slots[span.resident.adapter],
                span.request.foresee(1)[0],
                sampling.temperature,
                sampling.top_p,
                sampling.top_k,
                sampling.min_p,
            ]
            for span in spans
            for sampling in [span.request.sampling]
        ]
        columns += [[0, 0, self.store.num_rows, 0, *NO_SAMPLING]] * (number - len(spans))
        self._inputs[:, :number] = torch.tensor(columns, dtype=torch.float64).T
        cut = any(cuts(span.request.sampling) for span in spans)
        draw_for: Callable[[int, bool], Tensor] = self._graphs or self._draw_for
        tokens, logprobs = draw_for(number, cut).tolist()
        return {id(span): (int(token), value) for span, token, value in zip(spans, tokens, logprobs, strict=False)}

    def _draw_for(self, number: int, cut: bool) -> Tensor:
        """A token for each of the first inputs: [2, number], the tokens and their log-probabilities."""
        token, position, row, slot = self._inputs[:4, :number].long()
        cache = RowsCache(self, position, row, row, position + 1, self._starts[: number + 1], 1)
        hidden_ND = self.reader.hidden(token[None], position[None], cache, self._plan(slot))[0]
        token_N, logprob_N = draw(self.reader.logits(hidden_ND), SamplingParams(*self._inputs[4:, :number]), cut=cut)
        return torch.stack([token_N.double(), logprob_N.double()])

    def _plan(self, slot_T: Tensor) -> Stacked | None:
        adapters = self.reader.adapters
        return Stacked(adapters.slots, slot_T) if adapters else None

    def _read(self, spans: Sequence[Span]) -> dict[int, tuple[int, float]]:
        """Reads tokens of any number; who then has all of a prompt draws."""

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, device=self.reader.device)

        known, sizes = [len(span.resident.ids) for span in spans], [len(span.tokens) for span in spans]
        position_T = tensor([start + i for start, size in zip(known, sizes, strict=True) for i in range(size)])
        row_N, size_N = tensor([span.resident.place for span in spans]), tensor(sizes)
        slot_N = tensor([self.reader.adapters.slots[span.resident.adapter] for span in spans])
        starts = [0, *accumulate(sizes)]
        row_T, slot_T = (each.repeat_interleave(size_N, output_size=starts[-1]) for each in (row_N, slot_N))
        cache = RowsCache(self, position_T, row_T, row_N, tensor(known) + size_N, tensor(starts).int(), max(sizes))
        token_T = tensor([token for span in spans for token in span.tokens])
        hidden_TD = self.reader.hidden(token_T[None], position_T[None], cache, self._plan(slot_T))[0]
        drawing = [(span, end - 1) for span, end in zip(spans, starts[1:], strict=True) if span.draws]
        if not drawing:
            return {}
        logits = self.reader.logits(hidden_TD[[last for _, last in drawing]])
        drawn = draw_next(logits, [span.request for span, _ in drawing])
        return {id(span): each for (span, _), each in zip(drawing, drawn, strict=True)}


class RowsCache:
    """The rows of N episodes as a model's cache, for T concatenated tokens.

    `position_T` and `row_T` say where each token belongs, `row_N` and `end_N` how much of which row
    each episode then has, `start_N1` where its tokens begin, `most` the most tokens that any of them has.
    """

    def __init__(
        self,
        runner: RowsRunner,
        position_T: Tensor,
        row_T: Tensor,
        row_N: Tensor,
        end_N: Tensor,
        start_N1: Tensor,
        most: int,
    ) -> None:
        self.kv, self.flash, self.sights = runner.store.kv, runner.flash, runner.reader.sights
        self.position_T, self.row_T, self.row_N, self.start_N1 = position_T, row_T, row_N, start_N1
        self.most, self.end_N = most, end_N.int()
        # Where each episode's keys begin when all rows are taken as one; a last entry is asked for and not read.
        self.first_N1 = torch.cat([row_N, row_N[-1:] + 1]).mul(self.kv.shape[3]).int()

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[RowsLayer, None]:
        """Puts the new keys and values [1, G, T, D] where they belong."""
        for stored, new in zip(self.kv[layer], (keys, values), strict=True):
            stored[self.row_T, self.position_T] = new[0].transpose(0, 1).to(stored.dtype)
        return RowsLayer(self, layer), None


class RowsLayer:
    """One layer's keys and values of all episodes."""

    def __init__(self, cache: RowsCache, layer: int) -> None:
        self.cache, self.sight = cache, cache.sights[layer]
        self.keys, self.values = cache.kv[layer]

    def attend(self, query: Tensor, scaling: float, softcap: float | None, sinks_H: Tensor | None) -> Tensor:
        query_THD = query[0].transpose(0, 1).to(self.keys.dtype).contiguous()
        if self.cache.flash:
            return self._flash(query_THD, scaling, sinks_H)[None]
        return self._one_by_one(query_THD, scaling, softcap, sinks_H)[None]

    def _flash(self, query_THD: Tensor, scaling: float, sinks_H: Tensor | None) -> Tensor:
        cache, window = self.cache, self.sight.window
        sees = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
        out, norm, *_ = torch.ops.aten._flash_attention_forward(
            query_THD,
            self.keys.flatten(0, 1),
            self.values.flatten(0, 1),
            cache.start_N1,
            cache.first_N1,
            cache.most,
            cache.kv.shape[3],
            0.0,
            True,
            False,
            scale=scaling,
            seqused_k=cache.end_N,
            **sees,
        )
        if sinks_H is not None:
            out = out * torch.sigmoid(norm.T - sinks_H.float())[..., None].to(out.dtype)
        return out  # type: ignore[no-any-return]

    def _one_by_one(self, query_THD: Tensor, scaling: float, softcap: float | None, sinks_H: Tensor | None) -> Tensor:
        """For what FlashAttention cannot do, among it float32: slow, and no CUDA graph can hold it."""
        outs, starts = [], self.cache.start_N1.tolist()
        rows, ends = self.cache.row_N.tolist(), self.cache.end_N.tolist()
        for row, end, (begin, stop) in zip(rows, ends, pairwise(starts), strict=True):
            query = query_THD[begin:stop].transpose(0, 1)
            repeats = query.shape[0] // self.keys.shape[2]
            both = (self.keys[row, :end], self.values[row, :end])
            key, value = (x.transpose(0, 1).repeat_interleave(repeats, 0) for x in both)
            position_Q1 = self.cache.position_T[begin:stop, None]
            key_L = torch.arange(end, device=query.device)
            sees = key_L <= position_Q1
            if (since := self.sight.since(position_Q1)) is not None:
                sees &= key_L >= since
            if softcap or sinks_H is not None:
                scores = (query @ key.transpose(1, 2)).float() * scaling
                scores = (scores / softcap).tanh() * softcap if softcap else scores
                scores = scores.masked_fill(~sees, float("-inf"))
                if sinks_H is not None:
                    scores = torch.cat([scores, sinks_H.float()[:, None, None].expand(-1, scores.shape[1], 1)], -1)
                out = scores.softmax(-1)[..., :end].to(value.dtype) @ value
            else:
                out = scaled_dot_product_attention(query[None], key[None], value[None], sees, scale=scaling)[0]
            outs.append(out.transpose(0, 1))
        return torch.cat(outs)


def flash_attends(reader: TokenReader) -> bool:
    """Whether FlashAttention can do what the model's layers do."""
    capped = getattr(reader.policy.decoder.config, "attn_logit_softcapping", None)
    return (
        reader.device.type == "cuda"
        and reader.dtype in (torch.bfloat16, torch.float16)
        and reader.head_size <= 256
        and reader.head_size % 8 == 0
        and not capped
        and all(sight.chunk is None for sight in reader.sights)
    )


def batches(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in order, none with more than `TOGETHER` tokens if it can be helped."""
    done: list[list[Span]] = []
    num_tokens = TOGETHER
    for span in spans:
        if num_tokens + len(span.tokens) > TOGETHER:
            done.append([])
            num_tokens = 0
        done[-1].append(span)
        num_tokens += len(span.tokens)
    return done
