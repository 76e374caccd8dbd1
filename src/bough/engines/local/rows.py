"""Keys and values on a GPU: one tensor in which every episode has a row, read in place.

Tokens of several episodes are concatenated, whether they are prompts or single
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

from bough.engines.local.adapters import Stacked
from bough.engines.local.draw import SamplingParams, cuts, draw, uniform
from bough.engines.local.pages import Graphs
from bough.engines.local.reader import TokenReader
from bough.engines.local.schedule import Resident, Span
from bough.trees.mixers import Sight

TOGETHER = 16_384  # tokens of prompts that are read together


class RowsStore:
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

    def reach(self, resident: Resident, length: int, *, soon: bool = False) -> int:  # noqa: ARG002
        return length  # keys and values can be cut back to any token

    def mark(self, resident: Resident, length: int) -> None:
        """Nothing to prepare for."""

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        self.kv[:, :, target.place, begin:end] = self.kv[:, :, source.place, begin:end]

    def own(self, resident: Resident, begin: int) -> None:
        """Nothing here is shared."""

    def free(self, resident: Resident) -> None:
        heapq.heappush(self._free, resident.place)
        resident.place, resident.capacity = None, 0


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

    def prepare(self) -> None:
        """Records the graphs of all numbers of episodes, so that no step has to: a few seconds."""
        if self._graphs is None:
            return
        self._inputs.zero_()
        self._inputs[2] = self.store.num_rows
        for number in sorted({rounded(n) for n in range(1, self.store.num_rows + 1)}):
            self._graphs(number, False)

    def run(self, spans: Sequence[Span]) -> list[list[tuple[int, float]]]:
        """Computes the spans; for each that draws, the token and its log-probability."""
        if self._graphs and self._version != self.reader.adapters.slots.version:
            self._graphs.forget()
            self._version = self.reader.adapters.slots.version
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
        return [[drawn[id(span)]] if span.draws else [] for span in spans]

    def _draw(self, spans: Sequence[Span]) -> dict[int, tuple[int, float]]:
        number = rounded(len(spans))
        slots = self.reader.adapters.slots
        columns = [
            [
                span.tokens[0],
                len(span.resident.ids),
                span.resident.place,
                slots[span.resident.adapter],
                *sampling_numbers(span),
            ]
            for span in spans
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
        device = self.reader.device
        # One padding token: a single prompt would be compiled for by itself.
        known = [*(len(span.resident.ids) for span in spans), 0]
        sizes = [*(len(span.tokens) for span in spans), 1]
        tokens = torch.tensor([*(token for span in spans for token in span.tokens), 0], device=device)
        positions = [start + i for start, size in zip(known, sizes, strict=True) for i in range(size)]
        position = torch.tensor(positions, device=device)
        rows = torch.tensor([*(span.resident.place for span in spans), self.store.num_rows], device=device)
        size_N = torch.tensor(sizes, device=device)
        ends = torch.tensor(known, device=device) + size_N
        starts = torch.tensor([0, *sizes], device=device).cumsum(0).int()
        row_of_each = torch.repeat_interleave(rows, size_N, output_size=len(positions))
        slots = [*(self.reader.adapters.slots[span.resident.adapter] for span in spans), 0]
        slot_of_each = torch.tensor(slots, device=device).repeat_interleave(size_N, output_size=len(positions))
        cache = RowsCache(self, position, row_of_each, rows, ends, starts, max(sizes))
        hidden_TD = self.reader.hidden(tokens[None], position[None], cache, self._plan(slot_of_each))[0]
        drawing = [(i, span) for i, span in enumerate(spans) if span.draws]
        if not drawing:
            return {}
        logits = self.reader.logits(hidden_TD[starts[1:].long() - 1][[i for i, _ in drawing]])
        params = [(span.request.sampling, sampling_numbers(span)[0]) for _, span in drawing]
        cut = any(cuts(sampling) for sampling, _ in params)
        token, logprob = draw(logits, SamplingParams.of(params, device), cut=cut)
        results = zip(drawing, token.tolist(), logprob.tolist(), strict=True)
        return {id(span): (chosen, value) for (_, span), chosen, value in results}


class RowsCache:
    """The rows of N episodes as a model's cache, for T concatenated tokens; `attend_rows` says what is what.

    It is made of tensors and numbers alone, so that a compiled layer takes any of them.
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
        self.kv, self.flash = runner.store.kv, runner.flash
        self.position_T, self.row_T, self.row_N, self.start_N1 = position_T, row_T, row_N, start_N1
        self.most, self.end_N = most, end_N.int()
        # A last entry is asked for and not read.
        self.first_N1 = torch.cat([row_N, row_N[-1:] + 1]).mul(self.kv.shape[3]).int()
        sights = runner.reader.sights
        self.window, self.chunk = sights[0].window or NONE, sights[0].chunk or NONE
        self.others = None if len(set(sights)) == 1 else [(s.window or NONE, s.chunk or NONE) for s in sights]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[RowsLayer, None]:
        return RowsLayer(self, keys, values, layer), None


class RowsLayer:
    """One layer's new keys and values, on their way."""

    def __init__(self, cache: RowsCache, keys: Tensor, values: Tensor, layer: int) -> None:
        self.cache, self.keys, self.values, self.layer = cache, keys, values, layer

    def attend(self, query: Tensor, scaling: float, softcap: float | None, sinks_H: Tensor | None) -> Tensor:
        cache, dtype = self.cache, self.cache.kv.dtype
        # A number that differs from layer to layer would be compiled for one by one.
        window, chunk = (cache.window, cache.chunk) if cache.others is None else cache.others[self.layer]
        query_THD, keys_TGD, values_TGD = (x[0].transpose(0, 1).to(dtype) for x in (query, self.keys, self.values))
        out_THD: Tensor = attend_rows(
            query_THD.contiguous(),
            keys_TGD,
            values_TGD,
            cache.kv,
            self.layer,
            cache.position_T,
            cache.row_T,
            cache.row_N,
            cache.end_N,
            cache.start_N1,
            cache.first_N1,
            cache.most,
            window,
            chunk,
            scaling,
            softcap or 0.0,
            cache.flash,
            sinks_H,
        )
        return out_THD[None]


NO_SAMPLING = [0.0, 1.0, 1.0, 0.0, 0.0]


def sampling_numbers(span: Span) -> list[float]:
    """How the span's next token is drawn, in the order of `SamplingParams`."""
    request, sampling = span.request, span.request.sampling
    drawn = uniform(request.seed, len(request.completion_ids))
    return [drawn, sampling.temperature, sampling.top_p, float(sampling.top_k), sampling.min_p]


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


def rounded(needed: int) -> int:
    """As few different numbers as will do: 2 to 8 by powers of two, then by eighths of the power above.

    Not 1, which would be compiled for by itself.
    """
    needed = max(needed, 2)
    power = 1 << max(needed - 1, 0).bit_length()
    step = max(power // 8, 1) if power > 8 else power
    return -(-needed // step) * step


# Attention over the rows of a cache, which also puts the new keys and values there, as one operation.
# To torch.compile it is a single node that changes the cache in place: a layer around it becomes one graph, and
# nothing is copied.

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
