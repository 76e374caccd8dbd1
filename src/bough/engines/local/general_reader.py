"""A model read by its own code: its attention, and the cache that transformers makes for it.

What such a cache can do differs from model to model and is not read off a name: `find_ways`
tries each use of it on a few tokens and compares with the model's forward without a cache.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bough.engines.local.adapter_plan import Segments
from bough.engines.local.cache_batch import CacheBatch
from bough.engines.local.reader import Reader
from bough.engines.local.trial import agrees, trial_length, trial_tokens
from bough.policy.policy import Policy
from bough.trees.layers import length_matters

log = logging.getLogger(__name__)

CACHE_NAMES = ("past_key_values", "cache_params", "state")  # as forward functions take their cache
STEPS = 3  # tokens that are read one by one
KEEPING_ALL = {
    "DynamicSlidingWindowLayer": "DynamicLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer": "LinearAttentionAndFullAttentionLayer",
}


@dataclass(frozen=True)
class Ways:
    """How a model can be read.

    `cache` is "whole" for transformers' own with all keys and values kept, even outside of
    windows, so that it can be cut back; "own" for what the model makes itself; "none" where the
    whole episode is read again for every token. `continues`: several tokens can be read in one pass after
    cached ones. `together`: what can be read in one batch: "padded" (episodes of any length),
    "equal" (of the same length), "alone".
    """

    cache: Literal["whole", "own", "none"] = "none"
    continues: bool = False
    together: Literal["padded", "equal", "alone"] = "alone"


UNCACHED = Ways(together="padded")


class GeneralReader(Reader):
    """Reads tokens after those of a `CacheBatch`; all tokens of a pass have the same adapter."""

    in_order = False

    def __init__(self, policy: Policy, *, fold: bool = False, ways: Ways | None = None) -> None:
        super().__init__(policy, fold=fold)
        parameters = inspect.signature(policy.decoder.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)
        self._takes_positions = "position_ids" in parameters
        # Length at which the rotary frequencies change; what was cached before that cannot be used after it.
        self.turns_at: int | None = _turns_at(policy.decoder.config)
        self.ways = ways or Ways()
        if ways is None:
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
        cache = options[self._cache_name] or output[self._cache_name]
        return output.last_hidden_state, CacheBatch(cache, [length + new for length in lengths])

    def read_whole(self, episodes: Sequence[Sequence[int]], adapter: str = "") -> Tensor:
        """The hidden states [B, Q, D] of whole episodes without a cache; padding comes last, where no token looks."""
        longest = max(map(len, episodes))
        rows = [[*tokens, *[0] * (longest - len(tokens))] for tokens in episodes]
        with self.precision(), self.adapters.applied(Segments.whole(adapter)):
            output = self.policy.decoder(input_ids=torch.tensor(rows, device=self.device), use_cache=False)
        hidden_BQD: Tensor = output.last_hidden_state
        return hidden_BQD

    def _fresh(self) -> Any:
        if self.ways.cache != "whole":
            return None
        from transformers import DynamicCache, cache_utils

        cache = DynamicCache(config=self.policy.decoder.config)
        for number, layer in enumerate(cache.layers):
            if wider := KEEPING_ALL.get(type(layer).__name__):
                states = {"number_of_states": layer.number_of_states} if hasattr(layer, "number_of_states") else {}
                cache.layers[number] = getattr(cache_utils, wider)(**states)
        return cache


def find_ways(reader: GeneralReader) -> Ways:
    """The quickest ways of reading that give what the model's forward gives without a cache."""
    if _stretches(reader.policy.decoder.config):
        return Ways()
    if reader._cache_name is None:
        return UNCACHED
    trial = WaysTrial(reader)
    for cache in ("whole", "own"):
        ways = trial.attempt(Ways(cache=cache), trial.one_by_one)
        if ways is None:
            continue
        ways = trial.attempt(replace(ways, continues=True), trial.continuing) or ways
        together = ("equal",) if _needs_equal_lengths(reader) else ("padded", "equal")
        for way in together:
            run = trial.padded if way == "padded" else trial.side_by_side
            if better := trial.attempt(replace(ways, together=way), run):  # type: ignore[arg-type]
                return better
        return ways
    return UNCACHED


class WaysTrial:
    """Reads two made-up episodes in different ways."""

    def __init__(self, reader: GeneralReader) -> None:
        self.reader = reader
        length = trial_length(reader)
        lengths = (length, length - length // 3)
        self.long, self.short = (torch.tensor([trial_tokens(reader, n, seed=n)]) for n in lengths)
        self.expected = [reader.read_whole(each.tolist())[0] for each in (self.long, self.short)]

    def attempt(self, ways: Ways, read: Callable[[], bool]) -> Ways | None:
        """The ways, if reading so gives the right hidden states."""
        before, self.reader.ways = self.reader.ways, ways
        try:
            return ways if read() else None
        except Exception as error:  # a model's code may break in any way on a use that its authors did not mean
            log.debug("%s: %s: %s", ways, type(error).__name__, error)
            return None
        finally:
            self.reader.ways = before

    def one_by_one(self) -> bool:
        return self._steps([self.long[:, :-STEPS]], [self.long[:, -STEPS:]], [self.expected[0]])

    def continuing(self) -> bool:
        _, batch = self._read(self.long[:, :7])
        hidden, batch = self._read(self.long[:, 7:-5], batch)
        same = self._same(hidden[0], self.expected[0][7:-5])
        hidden, _ = self._read(self.long[:, -5:], batch)
        return same and self._same(hidden[0], self.expected[0][-5:])

    def padded(self) -> bool:
        both = [self.long, self.short]
        return self._steps([each[:, :-STEPS] for each in both], [each[:, -STEPS:] for each in both], self.expected)

    def side_by_side(self) -> bool:
        end = self.short.shape[1]
        both, expected = [self.long[:, :end], self.short], [self.expected[0][:end], self.expected[1]]
        return self._steps([each[:, :-STEPS] for each in both], [each[:, -STEPS:] for each in both], expected)

    def _steps(self, starts: list[Tensor], rests: list[Tensor], expected: list[Tensor]) -> bool:
        """Reads what each episode starts with, then the rest of all of them token by token in one batch."""
        batch = CacheBatch.joined([self._read(start)[1] for start in starts])
        steps = []
        for place in range(rests[0].shape[1]):
            hidden, batch = self._read(torch.cat([rest[:, place : place + 1] for rest in rests]), batch)
            steps.append(hidden[:, 0])
        seen_BQD = torch.stack(steps, 1)
        return all(self._same(ours, own[-ours.shape[0] :]) for ours, own in zip(seen_BQD, expected, strict=True))

    def _read(self, tokens: Tensor, batch: CacheBatch | None = None) -> tuple[Tensor, CacheBatch]:
        return self.reader.read(tokens.to(self.reader.device), batch)

    def _same(self, ours_QD: Tensor, own_QD: Tensor) -> bool:
        ours, own = (self.reader.logits(hidden).float().log_softmax(-1) for hidden in (ours_QD, own_QD))
        return agrees(float((ours - own).abs().mean()), self.reader)


def _needs_equal_lengths(reader: GeneralReader) -> bool:
    """Whether padding would matter past lengths that no trial reaches.

    That is where rotary frequencies change with the longest episode of a batch, or where the temperature
    of attention follows a token's place in the row, padding included (Llama 4).
    """
    return reader.turns_at is not None or bool(getattr(reader.policy.decoder.config, "attn_temperature_tuning", False))


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    return {str(one.get("rope_type")) for one in [rope, *rope.values()] if isinstance(one, dict)}


def _stretches(config: Any) -> bool:
    """Whether the rotary frequencies may change with every token."""
    return "dynamic" in _rope_types(config)


def _turns_at(config: Any) -> int | None:
    """The length after which other rotary frequencies apply, if there is one."""
    if not length_matters(config) or _stretches(config):
        return None
    rope = config.rope_parameters
    return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)
