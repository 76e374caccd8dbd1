"""Keys and values on a GPU: one tensor in which every episode has a row, read in place.

Tokens of several episodes lie one behind the other, whether they are prompts or single
tokens, and FlashAttention is told where each episode's keys begin and how many they are:
nothing is padded to the longest, and nothing gathered. A step in which all draw is one
CUDA graph, the draw included, for each (rounded) number of episodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bough.engines.local.draw import Wishes, cuts, draw, uniform
from bough.engines.local.graphs import Graphs
from bough.engines.local.reader import Reader
from bough.engines.local.schedule import Resident, Span
from bough.trees.layers import Sight

TOGETHER = 16_384  # tokens of prompts that are read together


class RowsStore:
    """`kv` is [layers, 2, rows, length, heads, size]. A resident's place is its row, and its cost 1.

    There is one row more than residents: what is computed for nobody goes there.
    """

    def __init__(self, reader: Reader, *, num_rows: int, length: int) -> None:
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
        resident.place, resident.capacity = None, 0


class RowsRunner:
    """Reads prompts together, and draws for all who draw at once."""

    mixes = False

    def __init__(self, reader: Reader, store: RowsStore, *, graphs: bool) -> None:
        self.reader, self.store = reader, store
        self.flash = flash_attends(reader)
        most = rounded(store.num_rows)
        # Of each who draws: token, position, row and the five wishes; float64 holds all of them exactly.
        self._inputs = torch.zeros(8, most, dtype=torch.float64, device=reader.device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=reader.device)
        self._graphs = Graphs(self._draw_for) if graphs and self.flash else None

    def run(self, spans: Sequence[Span]) -> list[tuple[int, float] | None]:
        """Computes the spans; for each that draws, the token and its log-probability."""
        drawn: dict[int, tuple[int, float]] = {}
        singles = [span for span in spans if len(span.tokens) == 1 and span.draws]
        for batch in batches([span for span in spans if len(span.tokens) > 1 or not span.draws]):
            drawn |= self._read(batch)
        if singles and self.flash:
            drawn |= self._draw(singles)
        elif singles:
            drawn |= self._read(singles)
        for span in spans:
            span.resident.ids.extend(span.tokens)
        return [drawn.get(id(span)) for span in spans]

    def _draw(self, spans: Sequence[Span]) -> dict[int, tuple[int, float]]:
        number = rounded(len(spans))
        columns = [[span.tokens[0], len(span.resident.ids), span.resident.place, *wish(span)] for span in spans]
        columns += [[0, 0, self.store.num_rows, *NO_WISH]] * (number - len(spans))
        self._inputs[:, :number] = torch.tensor(columns, dtype=torch.float64).T
        cut = any(cuts(span.request.sampling) for span in spans)
        draw_for: Callable[[int, bool], Tensor] = self._graphs or self._draw_for
        tokens, logprobs = draw_for(number, cut).tolist()
        return {id(span): (int(token), value) for span, token, value in zip(spans, tokens, logprobs, strict=False)}

    def _draw_for(self, number: int, cut: bool) -> Tensor:
        """A token for each of the first inputs: [2, number], the tokens and their log-probabilities."""
        token, position, row = self._inputs[:3, :number].long()
        cache = RowsCache(self, position, row, row, position + 1, self._starts[: number + 1], 1)
        hidden_ND = self.reader.hidden(token[None], position[None], cache)[0]
        token_N, logprob_N = draw(self.reader.logits(hidden_ND), Wishes(*self._inputs[3:, :number]), cut=cut)
        return torch.stack([token_N.double(), logprob_N.double()])

    def _read(self, spans: Sequence[Span]) -> dict[int, tuple[int, float]]:
        """Reads tokens of any number; who then has all of a prompt draws."""
        device = self.reader.device
        known = [len(span.resident.ids) for span in spans]
        sizes = [len(span.tokens) for span in spans]
        tokens = torch.tensor([token for span in spans for token in span.tokens], device=device)
        positions = [start + i for start, size in zip(known, sizes, strict=True) for i in range(size)]
        position = torch.tensor(positions, device=device)
        rows = torch.tensor([span.resident.place for span in spans], device=device)
        size_N = torch.tensor(sizes, device=device)
        ends = torch.tensor(known, device=device) + size_N
        starts = torch.tensor([0, *sizes], device=device).cumsum(0).int()
        row_of_each = torch.repeat_interleave(rows, size_N, output_size=len(positions))
        cache = RowsCache(self, position, row_of_each, rows, ends, starts, max(sizes))
        hidden_TD = self.reader.hidden(tokens[None], position[None], cache)[0]
        drawing = [(i, span) for i, span in enumerate(spans) if span.draws]
        if not drawing:
            return {}
        logits = self.reader.logits(hidden_TD[starts[1:].long() - 1][[i for i, _ in drawing]])
        wishes = [(span.request.sampling, wish(span)[0]) for _, span in drawing]
        cut = any(cuts(sampling) for sampling, _ in wishes)
        token, logprob = draw(logits, Wishes.of(wishes, device), cut=cut)
        results = zip(drawing, token.tolist(), logprob.tolist(), strict=True)
        return {id(span): (chosen, value) for (_, span), chosen, value in results}


class RowsCache:
    """The rows of N episodes as a model's cache, for T tokens one behind the other.

    `position_T` and `row_T` say where each token belongs, `row_N` and `end_N` how much of
    which row each episode then has, `start_N1` where its tokens begin, `most` the most
    tokens any of them has.
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
        self.kv, self.sights, self.flash = runner.store.kv, runner.reader.sights, runner.flash
        self.position_T, self.row_T, self.row_N, self.end_N, self.start_N1 = position_T, row_T, row_N, end_N, start_N1
        self.most = most
        length = self.kv.shape[3]
        # Where each episode's keys begin when all rows are taken as one; a last entry is asked for and not read.
        self.first_N1 = torch.cat([row_N, row_N[-1:] + 1]).mul(length).int()
        self.end32_N = end_N.int()

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[RowsLayer, None]:
        for states_1GTD, kind in ((keys, 0), (values, 1)):
            place = self.kv[layer, kind]
            place[self.row_T, self.position_T] = states_1GTD[0].transpose(0, 1).to(place.dtype)
        return RowsLayer(self, layer), None


class RowsLayer:
    """One layer's keys and values."""

    def __init__(self, cache: RowsCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def attend(self, query: Tensor, scaling: float, softcap: float | None) -> Tensor:
        keys, values = self.cache.kv[self.layer]
        query_THD = query[0].transpose(0, 1).to(keys.dtype)
        sight = self.cache.sights[self.layer]
        if self.cache.flash:
            return self._flash(query_THD, keys.flatten(0, 1), values.flatten(0, 1), scaling, sight)[None]
        return self._one_by_one(query_THD, keys, values, scaling, softcap, sight)[None]

    def _flash(self, query_THD: Tensor, keys: Tensor, values: Tensor, scaling: float, sight: Sight) -> Tensor:
        cache = self.cache
        window = {} if sight.window is None else {"window_size_left": sight.window - 1, "window_size_right": 0}
        out: Tensor = torch.ops.aten._flash_attention_forward(
            query_THD,
            keys,
            values,
            cache.start_N1,
            cache.first_N1,
            cache.most,
            cache.kv.shape[3],
            0.0,
            True,
            False,
            scale=scaling,
            seqused_k=cache.end32_N,
            **window,
        )[0]
        return out

    def _one_by_one(
        self, query_THD: Tensor, keys: Tensor, values: Tensor, scaling: float, softcap: float | None, sight: Sight
    ) -> Tensor:
        """For what FlashAttention cannot do, among it float32: slow, and no graph can hold it."""
        cache, outs = self.cache, []
        starts = cache.start_N1.tolist()
        for n, (row, end) in enumerate(zip(cache.row_N.tolist(), cache.end_N.tolist(), strict=True)):
            query = query_THD[starts[n] : starts[n + 1]].transpose(0, 1)
            repeats = query.shape[0] // keys.shape[2]
            key, value = (x[row, :end].transpose(0, 1).repeat_interleave(repeats, 0) for x in (keys, values))
            position_Q1 = cache.position_T[starts[n] : starts[n + 1], None]
            key_L = torch.arange(end, device=query.device)
            sees = key_L <= position_Q1
            if (since := sight.since(position_Q1)) is not None:
                sees &= key_L >= since
            if softcap is None:
                out = scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=sees, scale=scaling)[
                    0
                ]
            else:
                scores = ((query @ key.transpose(1, 2)).float() * (scaling / softcap)).tanh() * softcap
                out = scores.masked_fill(~sees, float("-inf")).softmax(-1).to(value.dtype) @ value
            outs.append(out.transpose(0, 1))
        return torch.cat(outs)


NO_WISH = [0.0, 1.0, 1.0, 0.0, 0.0]


def wish(span: Span) -> list[float]:
    """How the span's next token is drawn, in the order of `Wishes`."""
    request, sampling = span.request, span.request.sampling
    drawn = uniform(request.seed, len(request.completion_ids))
    return [drawn, sampling.temperature, sampling.top_p, float(sampling.top_k), sampling.min_p]


def flash_attends(reader: Reader) -> bool:
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


def rounded(needed: int) -> int:
    """As few different numbers as will do: up to 8 by powers of two, then by eighths of the power above."""
    power = 1 << max(needed - 1, 0).bit_length()
    step = max(power // 8, 1) if power > 8 else power
    return -(-needed // step) * step
