"""Visits to the GPU: prompts are read and several tokens drawn for all episodes, with one wait at the end.

A visit is at most two launches. The first reads the new tokens of every episode, those of
prompts and those last drawn alike, and draws one token for each who has all of its prompt. The
second draws `DRAWS` tokens more. Both are CUDA graphs, recorded once for each (rounded) size. Ends
of turn and lengths are seen on the GPU: an episode that ended waits there for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bough.engines.local.draw import SamplingParams, cuts, draw
from bough.engines.local.fused import FusedDecoder
from bough.engines.local.graphs import Graphs
from bough.engines.local.kernels import choose, splits_for
from bough.engines.local.pages import PagesStore, Tokens, block_size
from bough.engines.local.schedule import Span

DRAWS = 4  # tokens after the first in one visit
STOPS = 8  # stop tokens that the GPU knows; more are seen afterwards
PROMPTS = 4096  # tokens of prompts in one visit
FEWEST = 256  # tokens that are read together: the smallest size of a recorded graph
# Rows of the numbers that come with a visit, for each draw: token, position, row, the adapter's slot, tokens left, four
# sampling parameters, stop tokens, then a number between 0 and 1 for each token.
TOKEN, POSITION, ROW, SLOT, LEFT, TEMPERATURE, TOP_P, TOP_K, MIN_P, STOP = range(10)
UNIFORM = STOP + STOPS
NOTHING = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, *[-1.0] * STOPS, *[0.0] * (1 + DRAWS)]


class FusedRunner:
    """Computes spans with a `FusedDecoder` over pages."""

    mixes = True
    chunk = PROMPTS

    def __init__(self, decoder: FusedDecoder, store: PagesStore, *, max_running: int, graphs: bool) -> None:
        self.decoder, self.store, self.reader = decoder, store, decoder.reader
        device, self.most = self.reader.device, rounded(max_running)
        config = self.reader.policy.decoder.config
        self.block = block_size(config.num_attention_heads // self.reader.num_heads)
        self._numbers = torch.zeros(len(NOTHING), self.most, dtype=torch.float64, device=device)
        self._drawn = torch.zeros(1 + DRAWS, 2, self.most, dtype=torch.float64, device=device)
        self._ones = torch.ones(self.most, dtype=torch.int32, device=device)
        self._each = torch.arange(self.most, dtype=torch.int32, device=device)
        self._reading: dict[int, Tensor] = {}  # the inputs of reading, by the number of tokens
        self._reads = Graphs(self._read)
        self._draws = Graphs(self._draw)
        self._graphs = graphs
        self._version = 0

    def prepare(self) -> None:
        """Records the graphs of all sizes, so that no visit has to: some seconds."""
        for number in sorted({rounded(n) for n in range(1, self.most + 1)}):
            self._play(self._draws, number, False)

    def run(self, spans: Sequence[Span]) -> list[list[tuple[int, float]]]:
        """Computes the spans; for each the tokens that were drawn, with their log-probabilities."""
        if self._version != self.decoder.slots.version:
            self._reads.forget()
            self._draws.forget()
            self._version = self.decoder.slots.version
        self.store.upload()
        drawing = [span for span in spans if span.draws]
        cut = any(cuts(span.request.sampling) for span in drawing)
        reads = len(drawing) < len(spans) or any(len(span.tokens) > 1 for span in drawing)
        self._tell(drawing, reads=reads)
        if reads:
            self._play(self._reads, self._lay_out(spans), cut)
        if drawing:
            self._play(self._draws, rounded(len(drawing)), cut)
        for span in drawing:  # while the GPU computes
            span.request.foresee(2 * (1 + DRAWS))
        drawn = iter(self._collect(len(drawing), reads))
        result = [next(drawn) if span.draws else [] for span in spans]
        for span, new in zip(spans, result, strict=True):
            span.resident.ids.extend(span.tokens)
            span.resident.ids.extend(token for token, _ in new[:-1])
        return result

    def _play(self, graphs: Graphs, *shape: Any) -> None:
        """Plays a graph, or does the same without one."""
        if not self._graphs:
            graphs.step(*shape)
            return
        if shape not in graphs:
            # Recording draws too. It must not be for those who wait.
            numbers = self._numbers.clone()
            self._numbers[:] = self._numbers.new_tensor(NOTHING)[:, None]
            graphs.record(*shape)
            self._numbers.copy_(numbers)
        graphs(*shape)

    def _tell(self, drawing: Sequence[Span], *, reads: bool) -> None:
        """Brings to the GPU what it must know of each draw."""
        slots = self.decoder.slots
        columns = [_numbers_of(span, slots[span.resident.adapter], 0 if reads else 1) for span in drawing]
        columns += [NOTHING] * (self.most - len(drawing))
        self._numbers.copy_(torch.from_numpy(np.array(columns)).T)

    def _lay_out(self, spans: Sequence[Span]) -> int:
        """Brings the tokens to read to the GPU; their number, rounded."""
        sizes = np.array([len(span.tokens) for span in spans])
        starts = np.cumsum(sizes) - sizes
        used = int(sizes.sum())
        total = max(FEWEST, 1 << (used - 1).bit_length())
        num_blocks = -(-sizes // self.block)
        # The blocks of a span begin `block` tokens apart; the last has what is left.
        number = np.arange(num_blocks.sum()) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
        laid = Laid(total, self.block, self.most)
        laid.tokens[:used] = [token for span in spans for token in span.tokens]
        known = np.array([len(span.resident.ids) for span in spans])
        laid.positions[:used] = np.arange(used) + np.repeat(known - starts, sizes)
        laid.rows[:used] = np.repeat([span.resident.place.row for span in spans], sizes)
        laid.slots[:used] = np.repeat([self.decoder.slots[span.resident.adapter] for span in spans], sizes)
        laid.first[: len(number)] = np.repeat(starts, num_blocks) + number * self.block
        laid.count[: len(number)] = np.minimum(np.repeat(sizes, num_blocks) - number * self.block, self.block)
        last = (starts + sizes - 1)[[span.draws for span in spans]]
        laid.last[: len(last)] = last
        if total not in self._reading:
            self._reading[total] = torch.zeros(len(laid.all), dtype=torch.int32, device=self.reader.device)
        self._reading[total].copy_(torch.from_numpy(laid.all))
        return total

    def _read(self, total: int, cut: bool) -> Tensor:
        """Reads `total` tokens and draws one for each who draws."""
        sizes = Laid.sizes(total, self.block, self.most)
        token_T, position_T, row_T, slot_T, first_B, count_B, last_N = self._reading[total].split_with_sizes(sizes)
        tokens = Tokens(position_T, row_T, first_B, count_B, self.block, slot_T)
        hidden_TD = self.decoder(token_T, tokens, self.store.kv, self.store.table, 1)
        self._advance(hidden_TD[last_N], 0, cut)
        return self._drawn

    def _draw(self, number: int, cut: bool) -> Tensor:
        """Draws `DRAWS` tokens for the first `number`."""
        splits = splits_for(number, self.reader.num_heads, self.reader.device)
        for place in range(1, 1 + DRAWS):
            position_N, row_N = self._numbers[POSITION : ROW + 1, :number].int()
            slot_N = self._numbers[SLOT, :number].int() if self.decoder.slots else None
            tokens = Tokens(position_N, row_N, self._each[:number], self._ones[:number], 1, slot_N)
            token_N = self._numbers[TOKEN, :number].long()
            hidden_ND = self.decoder(token_N, tokens, self.store.kv, self.store.table, splits)
            self._advance(hidden_ND, place, cut)
        return self._drawn

    def _advance(self, hidden_ND: Tensor, place: int, cut: bool) -> None:
        """Draws a token after each hidden state; who has no token left keeps what he has."""
        numbers = self._numbers[:, : len(hidden_ND)]
        logits_NV = self.reader.logits(hidden_ND)
        uniform_N = numbers[UNIFORM + place]
        if cut:
            parameters = SamplingParams(uniform_N, *numbers[TEMPERATURE : MIN_P + 1])
            token_N, logprob_N = draw(logits_NV, parameters, cut=True)
        else:
            token_N, logprob_N = choose(logits_NV.contiguous(), numbers[TEMPERATURE], uniform_N)
        goes_on_N = numbers[LEFT] > 0
        token_N = token_N.double()
        self._drawn[place, 0, : len(hidden_ND)] = torch.where(goes_on_N, token_N, -1.0)
        self._drawn[place, 1, : len(hidden_ND)] = logprob_N
        ends_N = (numbers[STOP:UNIFORM] == token_N).any(0)
        numbers[TOKEN] = torch.where(goes_on_N, token_N, numbers[TOKEN])
        numbers[POSITION] += goes_on_N
        numbers[LEFT] = torch.where(ends_N, 0.0, numbers[LEFT] - 1)

    def _collect(self, number: int, read: bool) -> list[list[tuple[int, float]]]:
        """What was drawn for each, up to its end."""
        if not number:
            return []
        places = self._drawn[0 if read else 1 :, :, :number].tolist()
        return [[(int(tokens[n]), logprobs[n]) for tokens, logprobs in places if tokens[n] >= 0] for n in range(number)]


class Laid:
    """What is read in a visit, as one array.

    Tokens, their positions, rows and adapters' slots, blocks, and the tokens to draw after.
    """

    def __init__(self, total: int, block: int, most: int) -> None:
        sizes = self.sizes(total, block, most)
        self.all = np.zeros(sum(sizes), np.int32)
        self.tokens, self.positions, self.rows, self.slots, self.first, self.count, self.last = np.split(
            self.all, np.cumsum(sizes)[:-1]
        )

    @staticmethod
    def sizes(total: int, block: int, most: int) -> list[int]:
        blocks = total // block + most
        return [total, total, total, total, blocks, blocks, most]


def rounded(needed: int) -> int:
    """As few different numbers as will do: powers of two, and what is halfway between two of them."""
    power = max(1 << (needed - 1).bit_length(), 2)
    return power * 3 // 4 if power >= 16 and needed <= power * 3 // 4 else power


def _numbers_of(span: Span, slot: int, first: int) -> list[float]:
    """The numbers of one draw, whose tokens have the places from `first` on."""
    request, sampling = span.request, span.request.sampling
    done = len(request.completion_ids)
    stops = sorted(request.stop_ids)[:STOPS]
    return [
        span.tokens[-1],
        len(span.resident.ids) + len(span.tokens) - 1,
        span.resident.place.row,
        slot,
        request.most - len(request.prompt_ids) - done,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        *stops,
        *[-1.0] * (STOPS - len(stops)),
        *[0.0] * first,
        *request.foresee(1 + DRAWS - first),
    ]
