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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bough.engines.local.adapters import Segments
from bough.engines.local.caches import CacheBatch, Snapshot
from bough.engines.local.reader import Reader, agrees, trial_length, trial_tokens
from bough.engines.local.schedule import Resident, Span, Store, draw_next
from bough.policy.policy import Policy
from bough.trees.mixers import length_matters

log = logging.getLogger(__name__)

CHUNK = 2048  # tokens of prompts between two draws
TOGETHER = 16_384  # tokens that are read together where there is no cache
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

    def __init__(self, reader: GeneralReader, store: GeneralStore) -> None:
        self.reader, self.store = reader, store
        self._stepped: list[Resident] = []
        # A model that cannot read several tokens after cached ones reads a first prompt in one piece.
        self.chunk = CHUNK if reader.ways.continues else WHOLE

    def run(self, spans: Sequence[Span]) -> list[list[tuple[int, float]]]:
        """Computes the spans; for each that draws, the token and its log-probability."""
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
        return [[next(drawn)] if span.draws else [] for span in spans]

    def _read_whole(self, spans: list[Span]) -> dict[int, Tensor]:
        """The hidden state of each span's last token, without a cache: all tokens are read again."""
        hidden: dict[int, Tensor] = {}
        together = TOGETHER if self.reader.ways.together else 0
        group: list[Span] = []
        spans = sorted(spans, key=lambda span: span.resident.adapter)
        for span, following in zip(spans, [*spans[1:], None], strict=True):
            group.append(span)
            longest = max(len(one.resident.ids) + len(one.tokens) for one in group)
            adapter = span.resident.adapter
            same = following is not None and following.resident.adapter == adapter
            if same and longest * (len(group) + 1) <= together:
                continue
            episodes = [[*one.resident.ids, *one.tokens] for one in group]
            states_BQD = self.reader.read_whole(episodes, adapter)
            for one, tokens, states_QD in zip(group, episodes, states_BQD, strict=True):
                hidden[id(one)] = states_QD[len(tokens) - 1]
            group = []
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
