"""A decoder's step in few kernels, for the layers that most models have.

That is RMS norms before attention and feed-forward, rotary positions, keys shared by groups
of heads, and a gated SiLU. A step then has about ten kernels a layer instead of sixty. The
weights are copies in the type that is computed in, with projections of the same input joined and
the policy's own LoRA adapter added (`adapters.py`); call `renew` after the policy's own have changed.

Whether a model is of this form is read off its modules and then tried: every layer's
attention and the whole decoder are compared with the model's own before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bough.engines.local import kernels
from bough.engines.local.adapters import Joined, Slots, base, targets
from bough.engines.local.kernels import choose, splits_for
from bough.engines.local.pages import PAGE, Graphs, PagesStore, Tokens, block_size, rounded
from bough.engines.local.reader import TokenReader
from bough.engines.local.schedule import Drawn, Request, SamplingParams, Span, cuts, draw
from bough.policy.adapters import ACTOR, AdapterWeights
from bough.trees.mixers import length_matters

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
EVERYTHING = 1 << 30  # tokens that a layer without a window sees
TRIED = 3 * PAGE // 2  # tokens: more than a page
TOLERANCE = 0.05  # of the root mean square, in 16 bits; what is computed otherwise differs by far more


@dataclass
class FusedLayer:
    """One layer: its own modules, and their weights as they are used here."""

    attention: Any
    qkv: Joined
    out: Joined
    gate_up: Joined
    down: Joined
    before: Any
    between: Any
    norms: tuple[Any, Any] | None
    window: int


class FusedDecoder:
    """Hidden states of tokens whose keys and values go to pages."""

    def __init__(self, reader: TokenReader) -> None:
        decoder: Any = reader.policy.decoder
        self._seeds = count()
        self.reader, self.dtype = reader, reader.dtype
        self.embedding, self.norm = decoder.embed_tokens, decoder.norm
        self.layers = [
            self._layer(layer, sight.window) for layer, sight in zip(decoder.layers, reader.sights, strict=True)
        ]
        # The model's own cosines and sines of all positions, in float32.
        like = torch.empty(1, device=reader.device)
        cosine, sine = decoder.rotary_emb(like, torch.arange(reader.context, device=like.device)[None])
        self.rotary = cosine[0].float().contiguous(), sine[0].float().contiguous()
        self._names = {id(module): name for name, module in reader.policy.base.named_modules()}
        self.slots = Slots()

    def _layer(self, layer: Any, window: int | None) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp

        def joined(*layers: nn.Module) -> Joined:
            return Joined(layers, self.dtype, seed=next(self._seeds))

        return FusedLayer(
            attention,
            joined(attention.q_proj, attention.k_proj, attention.v_proj),
            joined(attention.o_proj),
            joined(mlp.gate_proj, mlp.up_proj),
            joined(mlp.down_proj),
            layer.input_layernorm,
            layer.post_attention_layernorm,
            (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
            window or EVERYTHING,
        )

    def renew(self) -> None:
        """Copies the policy's newest weights."""
        for joined in self.joined():
            joined.folded = joined.has_actor and not self.slots  # a removal that failed may have left it otherwise
            joined.renew()

    def joined(self) -> Iterator[Joined]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def check(self, weights: AdapterWeights) -> None:
        """InputError if the model cannot be computed with such an adapter."""
        targets(self.reader.policy, weights)

    def set(self, name: str, weights: AdapterWeights) -> None:
        """Adds an adapter, or replaces the one of this name."""
        slot = self.slots.take(name)
        try:
            self._keep_apart()
            for joined in self.joined():
                pairs = [weights.layers.get(self._names[id(layer)]) for layer in joined.layers]
                self.slots.version += joined.put(slot, self.slots.capacity, pairs)
        except BaseException:  # such as no memory; the policy's own adapter is in some weights only, until `renew`
            self.slots.free(name)
            raise

    def remove(self, name: str) -> None:
        self.set(name, AdapterWeights({}))
        self.slots.free(name)
        self._keep_apart()

    def _keep_apart(self) -> None:
        """The policy's own adapter is in the weights only while it is the only one; graphs are recorded again then."""
        for joined in self.joined():
            joined.keep_apart(bool(self.slots))

    def attend(
        self,
        layer: FusedLayer,
        x_TD: Tensor,
        kv: Tensor,
        table: Tensor,
        tokens: Tokens,
        splits: int,
        others_TS1: Tensor | None = None,
    ) -> Tensor:
        """The output of a layer's attention for its normed input."""
        norms = None if layer.norms is None else (layer.norms[0].weight, layer.norms[1].weight)
        eps = 0.0 if layer.norms is None else _eps(layer.norms[0])
        qkv_TX = layer.qkv(x_TD, others_TS1)
        query_THD = kernels.rotate_and_store(qkv_TX, kv, table, tokens, self.rotary, norms, eps)
        seen_TX = kernels.attend(query_THD, kv, table, tokens, layer.attention.scaling, layer.window, splits)
        return layer.out(seen_TX, others_TS1)

    def __call__(self, token_T: Tensor, tokens: Tokens, kv: Tensor, table: Tensor, splits: int) -> Tensor:
        """The hidden states [T, D]; `kv` is [layers, 2, pages, heads, PAGE, size]."""
        residual_TD = nn.functional.embedding(token_T, self.embedding.weight)
        others_TS1 = self.slots.others(tokens.slot_T) if self.slots and tokens.slot_T is not None else None
        x_TD: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x_TD = kernels.add_norm(x_TD, residual_TD, layer.before.weight, _eps(layer.before), self.dtype)
            x_TD = self.attend(layer, x_TD, kv[number], table, tokens, splits, others_TS1)
            x_TD = kernels.add_norm(x_TD, residual_TD, layer.between.weight, _eps(layer.between), self.dtype)
            x_TD = layer.down(kernels.gate(layer.gate_up(x_TD, others_TS1)), others_TS1)
        return kernels.add_norm(x_TD, residual_TD, self.norm.weight, _eps(self.norm), residual_TD.dtype)


def fused(reader: TokenReader) -> FusedDecoder | None:
    """The decoder of a policy in few kernels, or None where that is not what it computes."""
    if not _has_the_form(reader):
        return None
    decoder = FusedDecoder(reader)
    return decoder if _agrees(decoder) else None


def _has_the_form(reader: TokenReader) -> bool:
    """Whether the modules are there, and none that would be left out."""
    decoder: Any = reader.policy.decoder
    if {name for name, _ in decoder.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return False
    size = reader.head_size
    if size & (size - 1) or not 32 <= size * reader.dtype.itemsize <= 512 or length_matters(decoder.config):
        return False
    if reader.policy.has_adapter and reader.dtype not in (torch.float32, torch.bfloat16):  # it is folded
        return False
    whole = type(decoder.embed_tokens) is nn.Embedding and _unadapted(decoder.norm)
    return whole and all(sight.chunk is None for sight in reader.sights) and all(map(_usual, decoder.layers))


def _usual(layer: Any) -> bool:
    children = {name for name, _ in layer.named_children()}
    if children != LAYER or list(layer.self_attn.parameters(recurse=False)):  # such as sinks
        return False
    attention = dict(layer.self_attn.named_children())
    feed_forward = dict(layer.mlp.named_children())
    linear = [*(attention.get(name) for name in ATTENTION), *(feed_forward.get(name) for name in FEED_FORWARD)]
    norms = NORMS & set(attention)
    act: Any = feed_forward.pop("act_fn", None)
    x = torch.linspace(-4, 4, 9)
    return (
        set(attention) - norms == ATTENTION
        and norms in (set(), NORMS)
        and set(feed_forward) == FEED_FORWARD
        and all(map(_plain, linear))
        and callable(act)
        and torch.allclose(act(x), nn.functional.silu(x))
        and _unadapted(layer.input_layernorm)
        and _unadapted(layer.post_attention_layernorm)
        and all(layer.self_attn.get_submodule(name).weight.shape == (layer.self_attn.head_dim,) for name in norms)
    )


def _unadapted(norm: nn.Module) -> bool:
    """Whether a norm is the model's own: a copy that is trained in its place would be left out."""
    return not type(norm).__module__.startswith("peft.")


def _plain(layer: Any) -> bool:
    """A linear layer, bare or with a plain LoRA adapter."""
    if not isinstance(base(layer), nn.Linear):
        return False
    if not hasattr(layer, "lora_A"):
        return type(layer) is nn.Linear
    variant = ACTOR in layer.lora_variant or layer.lora_bias.get(ACTOR)
    return type(base(layer)) is nn.Linear and not variant and not layer.disable_adapters


@torch.inference_mode()
def _agrees(decoder: FusedDecoder) -> bool:
    """Whether every layer's attention and the whole decoder compute what the model's own code does."""
    reader = decoder.reader
    policy, device = reader.policy, reader.device
    length = min(TRIED, reader.context)
    generator = torch.Generator().manual_seed(0)
    token_T = torch.randint(0, reader.vocabulary, (length,), generator=generator).to(device)
    size = block_size(policy.decoder.config.num_attention_heads // reader.num_heads)
    first_B = torch.arange(0, length, size, dtype=torch.int32, device=device)
    position_T = torch.arange(length, dtype=torch.int32, device=device)
    tokens = Tokens(position_T, torch.zeros_like(position_T), first_B, (length - first_B).clamp(max=size), size)
    pages = -(-length // PAGE)
    table = torch.arange(pages, dtype=torch.int32, device=device)[None]
    shape = (reader.num_layers, 2, pages, reader.num_heads, PAGE, reader.head_size)
    kv = torch.zeros(shape, dtype=reader.dtype, device=device)
    x_TD = torch.randn(length, policy.decoder.config.hidden_size, generator=generator).to(device, reader.dtype)
    distance_TT = position_T[:, None] - position_T
    policy.row_reader.attend_with(policy.row_reader.plain_attention)
    with reader.precision():
        turned = policy.decoder.rotary_emb(x_TD[None], position_T[None].long())
        for number, layer in enumerate(decoder.layers):
            loud_TD = x_TD
            if layer.norms is None:  # louder, so that it looks at some tokens clearly more than at others
                spread = float(layer.qkv(x_TD).float().std() ** 2 * reader.head_size**0.5 * layer.attention.scaling)
                loud_TD = x_TD * min(float((3.0 / max(spread, 1e-6)) ** 0.5), 1000.0)
            unseen_TT = (distance_TT < 0) | (distance_TT >= layer.window)
            mask_TT = torch.zeros_like(distance_TT, dtype=reader.dtype)
            mask_TT = mask_TT.masked_fill_(unseen_TT, torch.finfo(reader.dtype).min)[None, None]
            own_TD = layer.attention(loud_TD[None], position_embeddings=turned, attention_mask=mask_TT)[0][0]
            if not _close(decoder.attend(layer, loud_TD, kv[number], table, tokens, 1), own_TD, reader.dtype):
                return False
        own_TD = policy.decoder(input_ids=token_T[None], use_cache=False).last_hidden_state[0]
    return _close(decoder(token_T, tokens, kv, table, 2), own_TD, reader.dtype)


def _close(ours: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
    apart = (ours.float() - own.float()).square().mean().sqrt()
    tolerance = TOLERANCE if torch.finfo(dtype).eps > 1e-5 else 1e-3
    return bool(apart <= tolerance * own.float().square().mean().sqrt())


def _eps(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


# Visits to the GPU: prompts are read and several tokens drawn for all episodes, with one wait at the end.
# A visit is at most two launches. The first reads the new tokens of every episode, those of prompts and those last
# drawn alike, and draws one token for each who has all of its prompt. The second draws `DRAWS` tokens more. Both are
# CUDA graphs, recorded once for each (rounded) size. Ends of turn and lengths are seen on the GPU: an episode that
# ended waits there for the others.

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

    chunk = PROMPTS
    merges = False  # not before it was measured on a GPU; attempts share the host's work there

    def __init__(self, decoder: FusedDecoder, store: PagesStore, *, max_running: int, graphs: bool) -> None:
        self.decoder, self.store, self.reader = decoder, store, decoder.reader
        device, self.most = self.reader.device, rounded(max_running)
        config = self.reader.policy.decoder.config
        self.block = block_size(config.num_attention_heads // self.reader.num_heads)
        self._numbers = torch.zeros(len(NOTHING), self.most, dtype=torch.float64, device=device)
        self._drawn = torch.zeros(1 + DRAWS, 2, self.most, dtype=torch.float64, device=device)
        self._ones = torch.ones(self.most, dtype=torch.int32, device=device)
        self._each = torch.arange(self.most, dtype=torch.int32, device=device)
        # Where several draws are made in a row: the row of each draw, and the first draw of each row.
        self._lanes = torch.zeros(2, self.most, dtype=torch.int64, device=device)
        self._reading: dict[int, Tensor] = {}  # the inputs of reading, by the number of tokens
        self._reads = Graphs(self._read)
        self._draws = Graphs(self._draw)
        self._graphs = graphs
        self._version = 0

    def run(self, spans: Sequence[Span]) -> list[list[Drawn]]:
        """Computes the spans; for each request and each follower the tokens that were drawn, with log-probabilities."""
        if self._version != self.decoder.slots.version:
            self._reads.forget()
            self._draws.forget()
            self._version = self.decoder.slots.version
        self.store.upload()
        drawing = [span for span in spans if span.draws]
        each = [(row, one) for row, span in enumerate(drawing) for one in span.request.together]
        merged = len(each) > len(drawing)
        cut = any(cuts(span.request.sampling) for span in drawing)
        reads = len(drawing) < len(spans) or any(len(span.tokens) > 1 for span in drawing)
        self._tell(drawing, each, reads=reads, merged=merged)
        if reads:
            self._play(self._reads, self._lay_out(spans), merged, cut)
        if drawing:
            self._play(self._draws, rounded(len(drawing)), merged, cut)
        for row, one in each:  # while the GPU computes
            one.foresee(len(drawing[row].request.completion_ids), 2 * (1 + DRAWS))
        places = self._drawn[0 if reads else 1 :, :, : len(each)].tolist() if drawing else []
        result: list[list[Drawn]] = []
        column = count()
        for span in spans:  # what was drawn for each, up to its end
            span.resident.ids.extend(span.tokens)
            result.append(
                [
                    [(int(tokens[n]), logprobs[n]) for tokens, logprobs in places if tokens[n] >= 0]
                    for _, n in zip(span.request.together if span.draws else (), column, strict=False)
                ]
            )
            if span.draws:
                span.resident.ids.extend(token for token, _ in result[-1][0][:-1])
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

    def _tell(self, drawing: Sequence[Span], each: Sequence[tuple[int, Request]], *, reads: bool, merged: bool) -> None:
        """Brings to the GPU what it must know of each draw, and in which row it is made."""
        first = 0 if reads else 1  # the place of the first token that is drawn
        heads = []
        for span in drawing:
            request, sampling = span.request, span.request.sampling
            stops = sorted(request.stop_ids)[:STOPS]
            heads.append(
                [
                    span.tokens[-1],
                    len(span.resident.ids) + len(span.tokens) - 1,
                    span.resident.place.row,
                    self.decoder.slots[span.resident.adapter],
                    request.most - len(request.prompt_ids) - len(request.completion_ids),
                    sampling.temperature,
                    sampling.top_p,
                    sampling.top_k,
                    sampling.min_p,
                    *stops,
                    *[-1.0] * (STOPS - len(stops)),
                    *[0.0] * first,
                ]
            )
        numbers = np.array(NOTHING)[:, None].repeat(self.most, 1)
        for column, (row, one) in enumerate(each):
            done = len(drawing[row].request.completion_ids)
            numbers[:, column] = [*heads[row], *one.foresee(done, 1 + DRAWS - first)]
        self._numbers.copy_(torch.from_numpy(numbers))
        if merged:
            rows = np.array([row for row, _ in each])
            lanes = np.zeros((2, self.most), np.int64)
            lanes[0, : len(rows)] = rows
            lanes[1, : len(drawing)] = np.searchsorted(rows, np.arange(len(drawing)))
            self._lanes.copy_(torch.from_numpy(lanes))

    def _sizes(self, total: int) -> list[int]:
        """Of what is read in a visit: tokens, their positions, rows and adapters' slots, blocks' first tokens and
        numbers of tokens, and the tokens to draw after."""
        blocks = total // self.block + self.most
        return [total, total, total, total, blocks, blocks, self.most]

    def _lay_out(self, spans: Sequence[Span]) -> int:
        """Brings the tokens to read to the GPU; their number, rounded."""
        sizes = np.array([len(span.tokens) for span in spans])
        starts = np.cumsum(sizes) - sizes
        used = int(sizes.sum())
        total = max(FEWEST, 1 << (used - 1).bit_length())
        num_blocks = -(-sizes // self.block)
        # The blocks of a span begin `block` tokens apart; the last has what is left.
        number = np.arange(num_blocks.sum()) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
        inputs = np.zeros(sum(self._sizes(total)), np.int32)
        parts = np.split(inputs, np.cumsum(self._sizes(total))[:-1])
        known = np.array([len(span.resident.ids) for span in spans])
        rows = [(span.resident.place.row, self.decoder.slots[span.resident.adapter]) for span in spans]
        filled = (
            [token for span in spans for token in span.tokens],
            np.arange(used) + np.repeat(known - starts, sizes),
            *np.repeat(np.array(rows).T, sizes, axis=1),
            np.repeat(starts, num_blocks) + number * self.block,
            np.minimum(np.repeat(sizes, num_blocks) - number * self.block, self.block),
            (starts + sizes - 1)[[span.draws for span in spans]],
        )
        for part, values in zip(parts, filled, strict=True):
            part[: len(values)] = values
        if total not in self._reading:
            self._reading[total] = torch.zeros(len(inputs), dtype=torch.int32, device=self.reader.device)
        self._reading[total].copy_(torch.from_numpy(inputs))
        return total

    def _read(self, total: int, merged: bool, cut: bool) -> Tensor:
        """Reads `total` tokens and draws one for each who draws."""
        parts = self._reading[total].split_with_sizes(self._sizes(total))
        token_T, position_T, row_T, slot_T, first_B, count_B, last_N = parts
        tokens = Tokens(position_T, row_T, first_B, count_B, self.block, slot_T)
        hidden_TD = self.decoder(token_T, tokens, self.store.kv, self.store.table, 1)
        self._advance(hidden_TD[last_N], 0, merged, cut)
        return self._drawn

    def _draw(self, number: int, merged: bool, cut: bool) -> Tensor:
        """Draws `DRAWS` tokens in each of the first `number` rows."""
        splits = splits_for(number, self.reader.num_heads, self.reader.device)
        for place in range(1, 1 + DRAWS):
            # A row continues with the token of its first draw.
            numbers = self._numbers[: SLOT + 1]
            numbers = numbers[:, self._lanes[1, :number]] if merged else numbers[:, :number]
            position_N, row_N = numbers[POSITION : ROW + 1].int()
            slot_N = numbers[SLOT].int() if self.decoder.slots else None
            tokens = Tokens(position_N, row_N, self._each[:number], self._ones[:number], 1, slot_N)
            hidden_ND = self.decoder(numbers[TOKEN].long(), tokens, self.store.kv, self.store.table, splits)
            self._advance(hidden_ND, place, merged, cut)
        return self._drawn

    def _advance(self, hidden_ND: Tensor, place: int, merged: bool, cut: bool) -> None:
        """Draws tokens after the hidden state of each row; finished sequences keep their last token.

        With `merged` there may be several draws in a row. Those that differ from the first are finished, too.
        """
        logits_NV = self.reader.logits(hidden_ND)
        if merged:
            logits_NV = logits_NV[self._lanes[0]]
        numbers = self._numbers[:, : len(logits_NV)]
        uniform_N = numbers[UNIFORM + place]
        if cut:
            parameters = SamplingParams(uniform_N, *numbers[TEMPERATURE : MIN_P + 1])
            token_N, logprob_N = draw(logits_NV, parameters, cut=True)
        else:
            token_N, logprob_N = choose(logits_NV.contiguous(), numbers[TEMPERATURE], uniform_N)
        goes_on_N = numbers[LEFT] > 0
        token_N = token_N.double()
        self._drawn[place, 0, : len(logits_NV)] = torch.where(goes_on_N, token_N, -1.0)
        self._drawn[place, 1, : len(logits_NV)] = logprob_N
        ends_N = (numbers[STOP:UNIFORM] == token_N).any(0)
        if merged:
            ends_N = ends_N | (token_N != token_N[self._lanes[1][self._lanes[0]]])
        numbers[TOKEN] = torch.where(goes_on_N, token_N, numbers[TOKEN])
        numbers[POSITION] += goes_on_N
        numbers[LEFT] = torch.where(ends_N, 0.0, numbers[LEFT] - 1)
