"""Which of the engine's ways of computing a policy gets: the fastest that gives the policy's own log-probabilities.

| path | where | what it needs |
|---|---|---|
| pages | a GPU | layers of the usual form, in few kernels over paged keys and values |
| ragged | a CPU | attention layers that each keep keys and values of one size |
| general | both | anything that transformers can generate with |
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import torch

from bough import bit_exact
from bough.config.groups import SamplingConfig
from bough.engines.local.adapters import AdaptedLayers, pays
from bough.engines.local.general import GeneralReader, GeneralRunner, GeneralStore
from bough.engines.local.pages import PAGE, PagesStore
from bough.engines.local.reader import Reader, TokenReader, agrees, free_bytes, trial_length, trial_tokens
from bough.engines.local.schedule import Drawn, Request, Resident, Span, SpanRunner, Store, draw_next
from bough.errors import InputError
from bough.policy.policy import Policy
from bough.policy.processes import unused_bytes
from bough.types import Call

if TYPE_CHECKING:
    from bough.engines.local.fused import FusedDecoder
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor

from bough.engines.local.adapters import Segments
from bough.trees.mixers import Sight

log = logging.getLogger(__name__)

Layout = Literal["pages", "general"]
GPU_LENGTH = 4096  # tokens of each episode for which there is room in pages
DRAWN = 4  # tokens, when a path is tried


@dataclass(frozen=True)
class PathOptions:
    """What the engine was asked for; `LocalEngine` says what each means."""

    max_tokens: int | None
    max_length: int | None
    max_running: int
    graphs: bool
    fold: bool | None
    layout: Layout | None
    training_bytes: int = 0


@dataclass(frozen=True)
class Path:
    """How tokens are computed. `budget` is in the store's own measure, `longest` the most tokens of an episode."""

    name: Literal["pages", "ragged", "general"]
    reader: Reader
    store: Store
    runner: SpanRunner
    budget: int
    longest: int
    adapters: AdaptedLayers | FusedDecoder
    decoder: FusedDecoder | None = None


def choose_path(policy: Policy, options: PathOptions) -> Path:
    """The first path that works. Where a layout is asked for, it is that one or an error."""
    if policy.sharded:
        raise InputError("a policy whose weights are spread over processes cannot be sampled with the local engine")
    if options.layout in (None, "pages") and (path := _pages(policy, options)):
        return path
    if options.layout == "pages":
        raise InputError("layout='pages' needs a CUDA device and a model of the usual form; leave it out")
    if options.layout == "general":
        return _general(policy, options, None)
    carries_state = policy.row_reader.carries_state
    obstacle = policy.obstacle or ("its layers carry state along the sequence" if carries_state else None)
    if policy.device.type == "cuda":
        obstacle = obstacle or "the kernels take plain layers of the usual form, and memory for a copy of the weights"
    elif not obstacle:
        try:
            path = _ragged(policy, options)
            apart = difference(path.reader, path.store, path.runner)
            if agrees(apart, path.reader):
                return path
            obstacle = f"with our own cache its log-probabilities would be wrong by {apart:.2g}"
        except InputError:  # of the options, not of the model
            raise
        except Exception as error:  # whatever a model's code does with a cache that is not transformers'
            log.debug("the local engine's own cache", exc_info=True)
            words = str(error).partition("\n")[0]
            obstacle = f"it does not work with our own cache: {type(error).__name__}: {words}"
    return _general(policy, options, obstacle)


def difference(reader: Reader, store: Store, runner: SpanRunner) -> float:
    """How far the log-probabilities of a few drawn tokens are from those that the policy computes, on average."""
    policy = reader.policy
    length = trial_length(reader)
    request = Request(
        "trial",
        trial_tokens(reader, length - DRAWN),
        SamplingConfig(max_new_tokens=DRAWN, temperature=policy.temperature or 1.0),
        seed=0,
        stop_ids=frozenset(),
        limit=length,
    )
    resident = Resident(request=request)
    store.allocate(resident, request.most)
    try:
        with reader.reading():
            drawn = None
            while drawn is None:
                (new,) = runner.run([Span(resident, request.after(len(resident.ids)), draws=True)])
                drawn = request.take(new[0])
            if isinstance(drawn, BaseException):
                return math.nan
            call = Call(prompt_ids=request.prompt_ids, completion_ids=drawn.completion_ids)
            (own,) = policy.logprobs([call], share=False)
            return float((torch.tensor(drawn.logprobs) - own.cpu()).abs().mean())
    finally:
        store.free(resident)


def _pages(policy: Policy, options: PathOptions) -> Path | None:
    if policy.obstacle or policy.row_reader.carries_state or not _fits_fused(policy):
        return None
    from bough.engines.local.fused import FusedRunner, fused

    try:
        reader = TokenReader(policy)
    except Exception as error:  # layers without keys and values, or with heads of several sizes
        log.debug("pages: %s", error)
        return None
    if not (decoder := fused(reader)):
        return None
    budget = _budget(reader, options)
    longest = min(reader.context, options.max_length or reader.context, budget // PAGE * PAGE)
    if longest < 2:
        raise InputError(f"max_tokens is {budget}; fewer than {PAGE} are too few for an episode")
    usual = options.max_running * -(-min(longest, GPU_LENGTH) // PAGE)
    num_pages = min(budget // PAGE, max(usual, -(-longest // PAGE)))
    store = PagesStore(reader, num_pages=num_pages, length=longest)
    runner = FusedRunner(decoder, store, max_running=options.max_running, graphs=options.graphs)
    return Path("pages", reader, store, runner, num_pages, longest, decoder, decoder)


def _fits_fused(policy: Policy) -> bool:
    """Whether there is a GPU for the fused decoder, with room for the weights once more, and for episodes."""
    if policy.device.type != "cuda" or find_spec("triton") is None:
        return False
    copied = sum(weight.numel() for weight in policy.decoder.parameters())
    copied *= (policy.autocast or policy.base.dtype).itemsize
    return bool(unused_bytes(policy.device) >= 2 * copied)


def _ragged(policy: Policy, options: PathOptions) -> Path:
    reader = TokenReader(policy, fold=_folds(policy, options))
    if reader.dtype == torch.float32:
        bit_exact.warn_if_batches_differ()
    budget, store = _budget(reader, options), RaggedStore(reader)
    block = store.cost(1)
    longest = min(reader.context, options.max_length or reader.context, budget // block * block)
    if longest < 2:
        raise InputError(f"max_tokens is {budget}; fewer than {block} are too few for an episode")
    return Path("ragged", reader, store, RaggedRunner(reader), budget, longest, reader.adapters)


def _general(policy: Policy, options: PathOptions, obstacle: str | None) -> Path:
    reader = GeneralReader(policy, fold=_folds(policy, options))
    name = f"{type(policy.base).__name__} ({policy.decoder.config.model_type})"
    if obstacle:
        how = "with its own cache" if reader.ways.cached else "without a cache, reading all for every token"
        log.warning("%s is sampled by its own code %s, slower than usual: %s", name, how, obstacle)
    store = GeneralStore(reader)
    if options.max_tokens is None:
        # Joining episodes in one batch copies what they have.
        budget = free_bytes(reader.device, options.training_bytes) // 2
    else:
        # What is asked for in tokens is not spent on states.
        budget = store.cost(options.max_tokens) + options.max_running * store.cost(0)
    longest = min(
        reader.context, options.max_length or reader.context, (budget - store.cost(0)) // store.bytes_per_token
    )
    if longest < 2:
        raise InputError(f"{budget >> 20} MB are free, too few for an episode; it needs {store.cost(2) >> 20} MB")
    return Path("general", reader, store, GeneralRunner(reader, store), budget, longest, reader.adapters)


def _folds(policy: Policy, options: PathOptions) -> bool:
    return pays(policy.model) if options.fold is None else options.fold


def _budget(reader: TokenReader, options: PathOptions) -> int:
    """Tokens of all episodes together."""
    if options.max_tokens is not None:
        return options.max_tokens
    return free_bytes(reader.device, options.training_bytes) // reader.bytes_per_token


# Keys and values on the CPU: for each episode a buffer that grows, attended to one episode at a time.

BLOCK = 512  # keys that torch's kernel looks at together; buffers grow by as much
STEP = 32  # the last block has a multiple of this many keys: whole vectors on any CPU
QUERIES = 128  # queries that are looked at together
ROWS = 32  # rows that torch's kernel takes at once, or a multiple
CAPPED = 128  # keys that are looked at together where scores are capped, which that kernel cannot do


class RaggedStore(Store):
    """A buffer [layers, 2, heads, tokens, size] for each resident."""

    def __init__(self, reader: TokenReader) -> None:
        self.reader = reader

    def cost(self, tokens: int) -> int:
        return -(-tokens // BLOCK) * BLOCK

    def allocate(self, resident: Resident, tokens: int) -> None:
        reader, old = self.reader, resident.place
        capacity = self.cost(tokens)
        shape = (reader.num_layers, 2, reader.num_heads, capacity, reader.head_size)
        # Zeros, for a weight of nothing times whatever was in memory may be NaN.
        resident.place = torch.zeros(shape, dtype=reader.dtype)
        resident.capacity = capacity
        if old is not None:
            known = len(resident.ids)
            resident.place[:, :, :, :known] = old[:, :, :, :known]

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        target.place[:, :, :, begin:end] = source.place[:, :, :, begin:end]


class RaggedRunner:
    """Reads all spans in one row of tokens, prompts and single tokens alike."""

    chunk = 512
    merges = True

    def __init__(self, reader: TokenReader) -> None:
        self.reader = reader

    def run(self, spans: Sequence[Span]) -> list[list[Drawn]]:
        """Computes the spans; for each that draws, the tokens and their log-probabilities."""
        ordered = sorted(spans, key=lambda span: span.resident.adapter) if self.reader.adapters else spans
        hidden_TD = self.read(ordered)
        ends = [0]
        for span in ordered:
            ends.append(ends[-1] + len(span.tokens))
        drawing = [(span, end - 1) for span, end in zip(ordered, ends[1:], strict=True) if span.draws]
        if not drawing:
            return [[] for _ in spans]
        rows = [row for _, row in drawing]
        logits_MV = self.reader.logits(hidden_TD[rows + rows[:1] * (len(rows) == 1)])
        drawn = draw_next(logits_MV, [span.request for span, _ in drawing])
        by_span = {id(span): tokens for (span, _), tokens in zip(drawing, drawn, strict=True)}
        return [by_span.get(id(span), []) for span in spans]

    def read(self, spans: Sequence[Span]) -> Tensor:
        """The hidden states of the spans' tokens, which their residents know from then on.

        Spans with adapters are sorted by them.
        """
        tokens = [token for span in spans for token in span.tokens]
        positions = [len(span.resident.ids) + i for span in spans for i in range(len(span.tokens))]
        padding = [0] * (len(tokens) == 1)
        sizes = [len(span.tokens) for span in spans]
        sizes[-1] += len(padding)
        hidden_TD = self.reader.hidden(
            torch.tensor([tokens + padding]),
            torch.tensor([positions + padding]),
            RaggedCache(spans, self.reader.sights),
            Segments.of([span.resident.adapter for span in spans], sizes),
        )[0]
        for span in spans:
            span.resident.ids.extend(span.tokens)
        return hidden_TD[: len(tokens)]


class Piece(NamedTuple):
    """A span's tokens in a pass, from `begin` to `end`; the first has this position in its episode."""

    begin: int
    end: int
    position: int
    buffer: Tensor


class RaggedCache:
    """The spans of one pass, as a model's cache."""

    def __init__(self, spans: Sequence[Span], sights: Sequence[Sight]) -> None:
        self.pieces: list[Piece] = []
        self.num_tokens = 0
        for span in spans:
            begin, self.num_tokens = self.num_tokens, self.num_tokens + len(span.tokens)
            self.pieces.append(Piece(begin, self.num_tokens, len(span.resident.ids), span.resident.place))
        self.sights = sights
        self.step = STEP if short_blocks() else BLOCK
        # Where each piece's new keys and values [G, Q, D] go, for each layer.
        places = [
            piece.buffer[:, states, :, piece.position : piece.position + piece.end - piece.begin].unbind(0)
            for states in (0, 1)
            for piece in self.pieces
        ]
        self._new = list(zip(*places, strict=True))
        self._bias: dict[tuple[int, int, Sight, int], Tensor] = {}
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Callable[..., Tensor], None]:
        """Puts the new keys and values [1, G, T, D] where they belong."""
        sizes = [piece.end - piece.begin for piece in self.pieces]
        new = [part for states in (keys, values) for part in states[0, :, : self.num_tokens].split_with_sizes(sizes, 1)]
        torch._foreach_copy_(self._new[layer], new)
        return partial(self._attend, layer), None

    def seen(self, number: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first keys and values of a piece [1, G, length, D], for each layer: cut once for all of them."""
        if number not in self._seen:
            keys, values = (self.pieces[number].buffer[:, states, None, :, :length].unbind(0) for states in (0, 1))
            self._seen[number] = list(zip(keys, values, strict=True))
        return self._seen[number]

    def bias(self, begin: int, end: int, sight: Sight, rows: int, step: int) -> Tensor:
        """What is added to scores of the tokens from `begin` to `end`, over and over: 0 or -inf [1, 1, rows, keys]."""
        if (begin, end, sight, rows) not in self._bias:
            query_Q1 = torch.arange(begin, end)[:, None]
            key_K = torch.arange(-(-end // step) * step)
            sees_QK = key_K <= query_Q1
            since_Q1 = sight.since(query_Q1)
            if since_Q1 is not None:
                sees_QK &= key_K >= since_Q1
            bias_QK = torch.zeros(sees_QK.shape).masked_fill_(~sees_QK, float("-inf"))
            self._bias[begin, end, sight, rows] = bias_QK.repeat(1, 1, -(-rows // (end - begin)), 1)[:, :, :rows]
        return self._bias[begin, end, sight, rows]

    def _attend(
        self, layer: int, query: Tensor, scaling: float, softcap: float | None, sinks_H: Tensor | None
    ) -> Tensor:
        """The outputs [1, Q, H, D] of one layer. A sink takes its part of the softmax and gives nothing."""
        groups, sight = self.pieces[0].buffer.shape[2], self.sights[layer]
        sinks_GR = None if sinks_H is None else sinks_H.view(groups, -1).float()
        query_TGRD = query[0].transpose(0, 1).reshape(query.shape[2], groups, -1, query.shape[3])
        query_TGRD = query_TGRD.to(self.pieces[0].buffer.dtype)
        plain = softcap is None and sinks_H is None and query_TGRD.shape[2] % ROWS != 1
        outs = []
        for number, (begin, end, position, buffer) in enumerate(self.pieces):
            if end - begin == 1 and plain:
                # The same as `_look`, for a single token: nothing has to be brought into order.
                bias = self.bias(position, position + 1, sight, query_TGRD.shape[2], self.step)
                keys, values = self.seen(number, bias.shape[3])[layer]
                outs.append(attend(query_TGRD[begin:end], keys, values, bias, scaling)[0])
                continue
            for first in range(begin, end, QUERIES):
                query_QGRD, start = query_TGRD[first : min(first + QUERIES, end)], position + first - begin
                outs.append(self._look(query_QGRD, buffer[layer], sight, start, scaling, softcap, sinks_GR))
        if (padding := len(query_TGRD) - self.num_tokens) > 0:
            outs.append(query_TGRD.new_zeros(padding, *query_TGRD.shape[1:]))
        return torch.cat(outs).flatten(1, 2)[None]

    def _look(
        self,
        query_QGRD: Tensor,
        states_2GKD: Tensor,
        sight: Sight,
        start: int,
        scaling: float,
        softcap: float | None,
        sinks_GR: Tensor | None,
    ) -> Tensor:
        """Attention of Q tokens, which begin at `start`, in G groups of R heads: a row for each token and head."""
        queries, groups, repeats, size = query_QGRD.shape
        query_GMD = query_QGRD.permute(1, 2, 0, 3).reshape(groups, -1, size)
        if query_GMD.shape[1] % ROWS == 1:  # the kernel would be left with a single row
            query_GMD = torch.cat([query_GMD, query_GMD[:, :1]], dim=1)
        step = self.step if softcap is None else CAPPED
        bias_11MK = self.bias(start, start + queries, sight, query_GMD.shape[1], step)
        keys, values = states_2GKD[:, :, : bias_11MK.shape[3]].unbind(0)
        if softcap is None:
            out_1GMD, norm_1GM = attend(query_GMD[None], keys[None], values[None], bias_11MK, scaling)
            out_GMD, norm_GM = out_1GMD[0], norm_1GM[0]
        else:
            out_GMD, norm_GM = attend_capped(query_GMD, keys, values, bias_11MK[0, 0], scaling, softcap)
        out_GRQD = out_GMD[:, : repeats * queries].reshape(groups, repeats, queries, size)
        if sinks_GR is not None:
            norm_GRQ = norm_GM[:, : repeats * queries].reshape(groups, repeats, queries)
            # Whole vectors of the same number: what is left over after the last one would be rounded differently.
            over_GRQD = (norm_GRQ - sinks_GR[:, :, None])[..., None].expand(-1, -1, -1, size).contiguous()
            out_GRQD = out_GRQD * torch.sigmoid(over_GRQD).to(out_GRQD.dtype)
        return out_GRQD.permute(2, 0, 1, 3)


def attend(
    query_1GMD: Tensor, keys_1GKD: Tensor, values_1GKD: Tensor, bias_11MK: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attention of M rows in G groups to K keys and values, a multiple of `STEP`; and each row's log-sum-exp."""
    seen: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        query_1GMD, keys_1GKD, values_1GKD, attn_mask=bias_11MK.to(query_1GMD.dtype), scale=scaling
    )
    return seen


def attend_capped(
    query_GMD: Tensor, keys_GKD: Tensor, values_GKD: Tensor, bias_MK: Tensor, scaling: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """The same without the first dimension, block by block, with scores that `softcap` bounds."""
    groups, rows, size = query_GMD.shape
    keys_GCKD, values_GCKD = (states.reshape(groups, -1, CAPPED, size) for states in (keys_GKD, values_GKD))
    scores_GCMK = (query_GMD * scaling)[:, None] @ keys_GCKD.transpose(2, 3)
    scores_GCMK = (scores_GCMK / softcap).tanh_().mul_(softcap)
    scores_GCMK += bias_MK.view(rows, -1, CAPPED).transpose(0, 1)
    peak_G1M1 = scores_GCMK.amax((1, 3), keepdim=True)
    weights_GCMK = scores_GCMK.sub_(peak_G1M1).exp_()
    # Running sums go from block to block in order; in what order a plain sum goes depends on the number of rows.
    total_GM1 = weights_GCMK.sum(3, keepdim=True).cumsum(1)[:, -1]
    out_GMD = (weights_GCMK @ values_GCKD).cumsum(1)[:, -1] / total_GM1
    return out_GMD, peak_G1M1[:, 0, :, 0] + total_GM1[..., 0].log()


@cache
def short_blocks() -> bool:
    """Whether on this machine a shorter last block of keys gives the same bits as a whole one; some ms, once."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, 2, n, 64, generator=generator) for n in (96, 2 * BLOCK, 2 * BLOCK))

    def seen(num_keys: int, rows: int, step: int) -> tuple[Tensor, Tensor]:
        end = -(-num_keys // step) * step
        bias_11MK = torch.zeros(1, 1, rows, end)
        bias_11MK[..., num_keys:] = -torch.inf
        return attend(query[:, :, :rows], keys[:, :, :end], values[:, :, :end], bias_11MK, 0.125)

    cases = [(num_keys, rows) for num_keys in (5, 300, BLOCK + 100, BLOCK + 412) for rows in (2, 3, 31, 96)]
    return all(all(map(torch.equal, seen(*case, BLOCK), seen(*case, STEP))) for case in cases)
