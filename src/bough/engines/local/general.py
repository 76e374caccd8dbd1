"""Sampling from any decoder that transformers can generate with, by the model's own code and cache.

Slower than the paths with our own cache, and exact: for models with recurrent or convolutional
layers, attention sinks, compressed keys, positions of their own kind. A prompt is read by itself,
then all who draw are stepped in one batch. An episode's cache stays with it between turns. Where
layers carry state, snapshots are taken at the ends of prompts and answers, and a changed history
continues from the longest that still fits.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bough.engines.local.adapters import Segments
from bough.engines.local.reader import Reader, agrees, trial_length, trial_tokens
from bough.engines.local.schedule import Drawn, Resident, Span, Store, draw_next
from bough.policy.policy import Policy
from bough.trees.mixers import length_matters

log = logging.getLogger(__name__)

CHUNK = 2048  # tokens of prompts between two draws
TOGETHER = 8  # episodes that are read together where there is no cache
SHORT = 255  # tokens: episodes up to this length are padded to the longest of them
SNAPSHOTS = 4  # of an episode: the earliest, which others may start from, and the latest
WHOLE = 1 << 40
Stepping = tuple[Span, list[int]]


@dataclass(eq=False)
class Place:
    """Where an episode's cache is: a row of a batch."""

    batch: CacheBatch | None = None
    row: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)


class GeneralStore(Store):
    """Caches by episode. Costs are in bytes, measured on a few tokens."""

    def __init__(self, reader: GeneralReader) -> None:
        self.reader = reader
        self.stateful = False
        self.bytes_per_token, self.bytes_of_states = 1, 0
        if reader.ways.cached:
            with reader.reading():
                _, batch = reader.read(torch.zeros(1, 16, dtype=torch.long, device=reader.device))
            along, self.bytes_of_states = batch.num_bytes
            self.stateful = self.bytes_of_states > 0
            self.bytes_per_token = max(along // 16, 1)

    def cost(self, tokens: int) -> int:
        return tokens * self.bytes_per_token + (1 + SNAPSHOTS) * self.bytes_of_states

    def allocate(self, resident: Resident, tokens: int) -> None:
        resident.place, resident.capacity = resident.place or Place(), self.cost(tokens)

    def reach(self, resident: Resident, length: int, *, soon: bool = False) -> int:
        known = len(resident.ids)
        if not length or not self.reader.ways.cached:
            return 0
        if not self.stateful or (length == known and not soon):
            return length
        lengths = [snapshot.length for snapshot in resident.place.snapshots]
        if soon and resident.request is not None:
            lengths += [end for end in [len(resident.request.prompt_ids) - 1] if end > known]
        return max((one for one in lengths if one <= length), default=0)

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:  # noqa: ARG002
        """Gives the target the source's first `end` tokens, all of them: they have the same start."""
        target.place.batch, target.place.row = self._cut(source, end), 0
        target.place.snapshots = [one for one in source.place.snapshots if one.length <= end]

    def own(self, resident: Resident, begin: int) -> None:
        """Cuts the cache back to the first `begin` tokens."""
        place: Place = resident.place
        if not self.reader.ways.cached or place.batch is None:
            return
        if begin == 0:
            place.batch, place.snapshots = None, []
            return
        if begin < place.batch.lengths[place.row]:
            place.batch, place.row = self._cut(resident, begin), 0
        place.snapshots = [one for one in place.snapshots if one.length <= begin]
        self.take_snapshot(resident)

    def take_snapshot(self, resident: Resident) -> None:
        """Keeps the way back to where the episode is now."""
        place: Place = resident.place
        if not self.stateful or place.batch is None:
            return
        length = place.batch.lengths[place.row]
        if any(one.length == length for one in place.snapshots):
            return
        place.snapshots.append(self.alone(resident).snapshot())
        place.snapshots.sort(key=lambda one: one.length)
        if len(place.snapshots) > SNAPSHOTS:
            del place.snapshots[1]

    def alone(self, resident: Resident) -> CacheBatch:
        """The episode's cache in a batch of its own."""
        place: Place = resident.place
        assert place.batch is not None
        if len(place.batch.lengths) > 1:
            place.batch, place.row = place.batch.selected([place.row]), 0
        return place.batch

    def _cut(self, resident: Resident, length: int) -> CacheBatch:
        batch = self.alone(resident)
        if length == batch.lengths[0]:
            return batch.copy()
        if not self.stateful:
            return batch.cropped(length)
        snapshot = next(one for one in resident.place.snapshots if one.length == length)
        return batch.cropped(length, snapshot)


class GeneralRunner:
    """Reads each new prompt by itself and steps all others together."""

    merges = True

    def __init__(self, reader: GeneralReader, store: GeneralStore) -> None:
        self.reader, self.store = reader, store
        self._stepped: list[Resident] = []
        # A model that cannot read several tokens after cached ones reads a first prompt in one piece.
        self.chunk = CHUNK if reader.ways.continues else WHOLE

    def run(self, spans: Sequence[Span]) -> list[list[Drawn]]:
        """Computes the spans; for each that draws, the tokens and their log-probabilities."""
        if self.reader.ways.cached:
            hidden = self._read_cached(spans)
        else:
            hidden = self._read_whole([span for span in spans if span.draws])
            for span in spans:
                span.resident.ids.extend(span.tokens)
        drawing = [span for span in spans if span.draws]
        if not drawing:
            return [[] for _ in spans]
        logits = self.reader.logits(torch.stack([hidden[id(span)] for span in drawing]))
        drawn = iter(draw_next(logits, [span.request for span in drawing]))
        return [next(drawn) if span.draws else [] for span in spans]

    def _read_whole(self, spans: list[Span]) -> dict[int, Tensor]:
        """The hidden state of each span's last token, without a cache: all tokens are read again."""
        hidden: dict[int, Tensor] = {}
        most = TOGETHER if self.reader.ways.together else 1
        spans = sorted(spans, key=lambda span: span.resident.adapter)
        for adapter, same in groupby(spans, key=lambda span: span.resident.adapter):
            mine = list(same)
            for first in range(0, len(mine), most):
                group = mine[first : first + most]
                episodes = [[*one.resident.ids, *one.tokens] for one in group]
                states_BQD = self.reader.read_whole(episodes, adapter)
                for one, tokens, states_QD in zip(group, episodes, states_BQD, strict=True):
                    hidden[id(one)] = states_QD[len(tokens) - 1]
        return hidden

    def _read_cached(self, spans: Sequence[Span]) -> dict[int, Tensor]:
        """The hidden state of each span's last token."""
        now = {id(span.resident) for span in spans}
        for resident in self._stepped:
            if id(resident) not in now and resident.place is not None:
                self.store.alone(resident)  # or it would hold on to the caches of all it was stepped with
        hidden: dict[int, Tensor] = {}
        left = [(span, self._read_alone(span, hidden)) for span in spans]
        while stepping := [(span, tokens) for span, tokens in left if tokens]:
            for group in self._groups(stepping):
                step = self._step([span for span, _ in group], [tokens.pop(0) for _, tokens in group])
                hidden.update((id(span), last_D) for (span, _), last_D in zip(group, step, strict=True))
        self._stepped = [span.resident for span in spans]
        return hidden

    def _read_alone(self, span: Span, hidden: dict[int, Tensor]) -> list[int]:
        """Reads what is better read by itself; what remains is to be stepped."""
        resident, tokens = span.resident, list(span.tokens)
        if resident.ids and (len(tokens) == 1 or not self.reader.ways.continues):
            return tokens
        # The last one steps with the others.
        end = len(tokens) - span.draws if len(tokens) > 1 else 1
        batch = self.store.alone(resident) if resident.ids else None
        piece = torch.tensor([tokens[:end]], device=self.reader.device)
        states, resident.place.batch = self.reader.read(piece, batch, resident.adapter)
        resident.place.row = 0
        resident.ids.extend(tokens[:end])
        hidden[id(span)] = states[0, -1]
        return tokens[end:]

    def _groups(self, stepping: list[Stepping]) -> list[list[Stepping]]:
        """Episodes that can be stepped in one batch. A pass has one adapter: layers may rearrange its tokens."""
        groups: dict[tuple[int, str], list[Stepping]] = {}
        for number, (span, tokens) in enumerate(stepping):
            if len(tokens) == 1 and span.draws and len(span.tokens) > 1:  # all of a prompt but its last token
                self.store.take_snapshot(span.resident)
            # Padding at most doubles what is stored.
            padded = max(len(span.resident.ids), SHORT).bit_length()
            key = padded if self.reader.ways.together else number
            groups.setdefault((key, span.resident.adapter), []).append((span, tokens))
        return list(groups.values())

    def _step(self, spans: list[Span], tokens: list[int]) -> Tensor:
        """The hidden states [B, D] of one more token for each."""
        batch = self._gather([span.resident for span in spans])
        rows = [span.resident.place.row for span in spans]
        token_B1 = torch.zeros(len(rows), 1, dtype=torch.long)
        token_B1[rows, 0] = torch.tensor(tokens)
        adapter = spans[0].resident.adapter
        hidden_BQD, after = self.reader.read(token_B1.to(self.reader.device), batch, adapter)
        for span, token in zip(spans, tokens, strict=True):
            span.resident.place.batch = after
            span.resident.ids.append(token)
        return hidden_BQD[rows, 0]

    def _gather(self, residents: list[Resident]) -> CacheBatch:
        """One batch of exactly these episodes: the one that they share already, or a new one."""
        parts: dict[int, list[Resident]] = {}
        for resident in residents:
            parts.setdefault(id(resident.place.batch), []).append(resident)
        batches: list[CacheBatch] = []
        row = 0
        for members in parts.values():
            batch: CacheBatch = members[0].place.batch
            if len(members) < len(batch.lengths):
                members.sort(key=lambda one: one.place.row)
                batch = batch.selected([one.place.row for one in members])
                for number, one in enumerate(members):
                    one.place.row = number
            for one in members:
                one.place.row += row
            row += len(batch.lengths)
            batches.append(batch)
        return CacheBatch.joined(batches)


# A model read by its own code: its attention, and a cache of transformers with all keys and values kept, even outside
# of windows, so that it can be cut back. What a model can do with one is not read off a name: `find_ways` tries each
# use of it on a few tokens and compares with the model's forward without a cache.

CACHE_NAMES = ("past_key_values", "cache_params")  # as forward functions take their cache
STEPS = 3  # tokens that are read one by one
KEEPING_ALL = {
    "DynamicSlidingWindowLayer": "DynamicLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer": "LinearAttentionAndFullAttentionLayer",
}


class Ways(NamedTuple):
    """How a model can be read.

    `cached`: after what a cache has; else the whole episode is read again for every token. `continues`:
    several tokens in one pass after cached ones. `together`: episodes of any length in one padded batch.
    """

    cached: bool = False
    continues: bool = False
    together: bool = False


class GeneralReader(Reader):
    """Reads tokens after those of a `CacheBatch`; all tokens of a pass have the same adapter."""

    in_order = False

    def __init__(self, policy: Policy, *, fold: bool = False) -> None:
        super().__init__(policy, fold=fold)
        config = policy.decoder.config
        parameters = inspect.signature(policy.decoder.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)
        self._takes_positions = "position_ids" in parameters
        rope = getattr(config, "rope_parameters", None) or {}
        types = {str(one.get("rope_type")) for one in [rope, *rope.values()] if isinstance(one, dict)}
        self.stretches = "dynamic" in types  # the rotary frequencies may change with every token
        if length_matters(config) and not self.stretches:
            # After this length other frequencies apply, and what was cached before could not be used.
            turn = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
            self.context = min(self.context, int(turn))
        with self.reading():
            self.ways = find_ways(self)

    def read(self, tokens_BQ: Tensor, batch: CacheBatch | None = None, adapter: str = "") -> tuple[Tensor, CacheBatch]:
        """The hidden states [B, Q, D] of tokens after a batch's, or after none, and the batch with them."""
        assert self._cache_name is not None
        num_rows, new = tokens_BQ.shape
        lengths = batch.lengths if batch else [0] * num_rows
        options: dict[str, Any] = {self._cache_name: batch.cache if batch else self._fresh()}
        if batch and (mask := batch.mask(new)) is not None:
            options["attention_mask"] = mask
        if self._takes_positions:
            begin_B1 = torch.tensor(lengths, device=self.device)[:, None]
            options["position_ids"] = begin_B1 + torch.arange(new, device=self.device)
        with self.precision(), self.adapters.applied(Segments.whole(adapter)):
            output = self.policy.decoder(input_ids=tokens_BQ, use_cache=True, **options)
        return output.last_hidden_state, CacheBatch(options[self._cache_name], [length + new for length in lengths])

    def read_whole(self, episodes: Sequence[Sequence[int]], adapter: str = "") -> Tensor:
        """The hidden states [B, Q, D] of whole episodes without a cache; padding comes last, where no token looks."""
        longest = max(map(len, episodes))
        rows = [[*tokens, *[0] * (longest - len(tokens))] for tokens in episodes]
        with self.precision(), self.adapters.applied(Segments.whole(adapter)):
            output = self.policy.decoder(input_ids=torch.tensor(rows, device=self.device), use_cache=False)
        return output.last_hidden_state  # type: ignore[no-any-return]

    def _fresh(self) -> Any:
        from transformers import DynamicCache, cache_utils

        cache = DynamicCache(config=self.policy.decoder.config)
        for number, layer in enumerate(cache.layers):
            if wider := KEEPING_ALL.get(type(layer).__name__):
                states = {"number_of_states": layer.number_of_states} if hasattr(layer, "number_of_states") else {}
                cache.layers[number] = getattr(cache_utils, wider)(**states)
        return cache


def find_ways(reader: GeneralReader) -> Ways:
    """The quickest ways of reading that give what the model's forward gives without a cache."""
    if reader.stretches:
        return Ways()
    length = trial_length(reader)
    episodes = [torch.tensor([trial_tokens(reader, n, seed=n)]) for n in (length, length - length // 3)]
    expected = [reader.read_whole(each.tolist())[0] for each in episodes]

    def read(tokens: Tensor, batch: CacheBatch | None = None) -> tuple[Tensor, CacheBatch]:
        return reader.read(tokens.to(reader.device), batch)

    def same(ours_QD: Tensor, own_QD: Tensor) -> bool:
        ours, own = (reader.logits(hidden).float().log_softmax(-1) for hidden in (ours_QD, own_QD))
        return agrees(float((ours - own).abs().mean()), reader)

    def steps(number: int) -> bool:
        """Reads what each of the first episodes starts with, then the rest of all token by token in one batch."""
        batch = CacheBatch.joined([read(each[:, :-STEPS])[1] for each in episodes[:number]])
        seen = []
        for place in range(-STEPS, 0):
            hidden, batch = read(torch.cat([each[:, [place]] for each in episodes[:number]]), batch)
            seen.append(hidden[:, 0])
        return batch.known and all(map(same, torch.stack(seen, 1), (own[-STEPS:] for own in expected)))

    def continuing() -> bool:
        long, own = episodes[0], expected[0]
        middle, batch = read(long[:, 7:-5], read(long[:, :7])[1])
        return same(middle[0], own[7:-5]) and same(read(long[:, -5:], batch)[0][0], own[-5:])

    def works(way: Callable[[], bool]) -> bool:
        try:
            return way()
        except Exception as error:  # a model's code may break in any way on a use that its authors did not mean
            log.debug("%s: %s", type(error).__name__, error)
            return False

    if reader._cache_name is None or not works(lambda: steps(1)):
        return Ways(together=True)
    # Llama 4's temperature of attention follows a token's place in the row, padding included, past any trial's length.
    padding_matters = bool(getattr(reader.policy.decoder.config, "attn_temperature_tuning", False))
    return Ways(True, works(continuing), not padding_matters and works(lambda: steps(2)))


# A cache of transformers that holds one or more episodes, each in a row of its own.
# Keys and values of shorter episodes are padded on the left, as `generate` does it; the states of recurrent and
# convolutional layers have no length and lie side by side. Keys and values can be cut back to any token. States cannot:
# for them a `Snapshot` is taken where one may want to return to.

ALONG = ("keys", "values", "indexer_keys")  # one entry for each token, in the dimension before the last
STATES = ("conv_states", "recurrent_states")  # one for each episode, however long
KNOWN = {
    "DynamicLayer",
    "DynamicIndexedLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
}


@dataclass(frozen=True)
class Snapshot:
    """The part of an episode's cache that cannot be cut back, as it was after `length` tokens."""

    length: int
    cache: Any


class CacheBatch:
    """The cache of episodes with `lengths` tokens; `cache` is the object that the model's forward takes."""

    def __init__(self, cache: Any, lengths: Sequence[int]) -> None:
        self.cache, self.lengths = cache, list(lengths)

    @property
    def known(self) -> bool:
        """Whether what each layer keeps is known here."""
        return all(type(layer).__name__ in KNOWN for layer in self.cache.layers)

    @property
    def num_bytes(self) -> tuple[int, int]:
        """The bytes of what grows with the tokens, and of what does not."""
        along, states = (
            sum(tensor.nbytes for layer in self.cache.layers for tensor in _tensors(layer, names))
            for names in (ALONG, STATES)
        )
        return along, states

    def mask(self, new: int) -> Tensor | None:
        """1 for each stored or `new` token, 0 for padding; None if there is no padding."""
        most = max(self.lengths)
        along = [tensor for layer in self.cache.layers for tensor in _tensors(layer, ALONG)]
        if not along or min(self.lengths) == most:
            return None
        device = along[0].device
        first_B1 = most - torch.tensor(self.lengths, device=device)[:, None]
        return (torch.arange(most + new, device=device) >= first_B1).long()

    def copy(self) -> CacheBatch:
        """The same with states of its own: models change them in place, unlike keys and values."""
        return CacheBatch(_mapped([self.cache], lambda x: x[0], lambda x: x[0].clone()), self.lengths)

    def snapshot(self) -> Snapshot:
        """What is needed to return here later; of one episode."""
        (length,) = self.lengths
        return Snapshot(length, _mapped([self.cache], lambda _: None, lambda x: x[0].clone()))

    def cropped(self, length: int, snapshot: Snapshot | None = None) -> CacheBatch:
        """One episode cut back to `length` tokens; with states, by a snapshot that was taken there."""
        both = [self.cache] if snapshot is None else [self.cache, snapshot.cache]
        return CacheBatch(_mapped(both, lambda x: x[0][..., :length, :], lambda x: x[-1].clone()), [length])

    def selected(self, rows: Sequence[int]) -> CacheBatch:
        """Some of the episodes, in this order, without padding that none of them needs."""
        lengths = [self.lengths[row] for row in rows]
        along = [tensor for layer in self.cache.layers for tensor in _tensors(layer, ALONG)]
        index = torch.tensor(rows, device=along[0].device) if along else torch.tensor(rows)
        skipped = max(self.lengths) - max(lengths)

        def some(tensors: list[Tensor]) -> Tensor:
            return tensors[0].index_select(0, index.to(tensors[0].device))

        return CacheBatch(_mapped([self.cache], lambda x: some(x)[..., skipped:, :], some), lengths)

    @classmethod
    def joined(cls, batches: Sequence[CacheBatch]) -> CacheBatch:
        """All episodes of several batches in one, in order. The batches are used up."""
        if len(batches) == 1:
            return batches[0]
        most = max(length for batch in batches for length in batch.lengths)
        missing = [most - max(batch.lengths) for batch in batches]

        def aligned(tensors: list[Tensor]) -> Tensor:
            return torch.cat([pad(one, (0, 0, gap, 0)) for one, gap in zip(tensors, missing, strict=True)])

        cache = _mapped([batch.cache for batch in batches], aligned, torch.cat)
        return cls(cache, [length for batch in batches for length in batch.lengths])


Change = Callable[[list[Tensor]], Tensor | None]


def _mapped(caches: Sequence[Any], along: Change, states: Change) -> Any:
    """A cache like the first whose tensors are made of those of all of them."""
    new = copy(caches[0])
    new.layers = []
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        layer = copy(layers[0])
        for name, value in vars(layers[0]).items():
            change = along if name in ALONG else states if name in STATES else None
            values = [getattr(one, name) for one in layers]
            if isinstance(value, dict):
                pick = partial(_changed, change)
                setattr(layer, name, {key: pick([one[key] for one in values]) for key in value})
            elif change is not None:
                setattr(layer, name, _changed(change, values))
        new.layers.append(layer)
    return new


def _changed(change: Change | None, values: list[Any]) -> Any:
    """Tensors are combined; other values are the same in all. Layers that need no cache have no tensors."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return change(tensors) if change is not None and tensors else values[0]


def _tensors(layer: Any, names: Sequence[str]) -> list[Tensor]:
    values = [value for name in names if (value := getattr(layer, name, None)) is not None]
    flat = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    return [one for one in flat if isinstance(one, Tensor)]
