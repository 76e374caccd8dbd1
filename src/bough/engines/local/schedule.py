"""Pending calls, who is computed next, and whose keys and values stay in memory.

A resident is an episode with cached tokens. Calls wait in the order in which they came
and are admitted as long as there is room: an idle resident may be dropped for it, the
one first that was idle longest. Room for the longest possible answer is set aside when a
call is admitted, so that a running call is never interrupted.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bough.config.groups import SamplingConfig
from bough.data.base import common_prefix
from bough.engines.base import EngineError, Generated
from bough.types import Finish

BLOCK = 128  # weights that are added up together


class SamplingParams(NamedTuple):
    """How each of B tokens is to be drawn, a number for each; float64, for they travel in one tensor."""

    uniform_B: Tensor
    temperature_B: Tensor
    top_p_B: Tensor
    top_k_B: Tensor
    min_p_B: Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[SamplingConfig, float]], device: torch.device | str = "cpu") -> SamplingParams:
        values = [(u, s.temperature, s.top_p, float(s.top_k), s.min_p) for s, u in rows]
        return cls(*torch.tensor(values, dtype=torch.float64).T.contiguous().to(device))


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) for the token at `place` of an answer."""
    digest = blake2b(struct.pack("<QQ", seed % (1 << 64), place), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def cuts(sampling: SamplingConfig) -> bool:
    """Whether unlikely tokens are left out, which takes sorting them."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def draw(logits_BV: Tensor, params: SamplingParams, *, cut: bool) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability at the row's temperature (1 for greedy), before the cuts.

    With `cut` false, top-p, top-k and min-p are ignored.
    """
    # A temperature of 0 is taken care of at the end; its log-probabilities are those of temperature 1.
    logits_BV = logits_BV.float() / params.temperature_B.where(params.temperature_B > 0, 1.0).float()[:, None]
    peak_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).exp()
    if cut:
        weights_BV = weights_BV * _kept(weights_BV, params)
    drawn_B = _passed(weights_BV, params.uniform_B)
    token_B = drawn_B.where(params.temperature_B > 0, logits_BV.argmax(-1))
    chosen_B = logits_BV.gather(1, token_B[:, None])[:, 0]
    return token_B, chosen_B - _log_total(logits_BV, peak_B1)


def draw_each(logits_BV: Tensor, params: Sequence[tuple[SamplingConfig, float]]) -> list[tuple[int, float]]:
    """A token for each row with its log-probability. Only rows that need sorting are sorted."""
    result: list[tuple[int, float]] = [(0, 0.0)] * len(params)
    for cut in (False, True):
        mine = [i for i, (sampling, _) in enumerate(params) if cuts(sampling) == cut]
        if mine:
            parameters = SamplingParams.of([params[i] for i in mine], logits_BV.device)
            token_M, logprob_M = draw(logits_BV[mine], parameters, cut=cut)
            for i, token, logprob in zip(mine, token_M.tolist(), logprob_M.tolist(), strict=True):
                result[i] = (token, logprob)
    return result


def _log_total(logits_BV: Tensor, peak_B1: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials."""
    if logits_BV.is_cuda:
        return logits_BV.logsumexp(-1)
    # Block by block: a sum over all at once is rounded differently in another batch.
    total_B = _blocks((logits_BV - peak_B1).exp()).sum(-1, dtype=torch.float64).cumsum(-1)[:, -1]
    return (total_B.log() + peak_B1[:, 0]).float()


def _passed(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The index at which the running sum of the weights passes this part of the total.

    First the block, then the place in it: a running sum over a whole vocabulary takes a
    GPU as long as half the model.
    """
    blocks_BKC = _blocks(weights_BV)
    sums_BK = blocks_BKC.sum(-1, dtype=torch.float64).cumsum(-1)
    target_B1 = uniform_B[:, None] * sums_BK[:, -1:]
    block_B1 = _first_above(sums_BK, target_B1)
    before_B1 = torch.nn.functional.pad(sums_BK, (1, 0)).gather(1, block_B1)
    inside_BC = blocks_BKC.gather(1, block_B1[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    passed_B = (block_B1 * BLOCK + _first_above(inside_BC, target_B1 - before_B1))[:, 0]
    return passed_B.clamp(max=weights_BV.shape[1] - 1)


def _first_above(sums_BK: Tensor, target_B1: Tensor) -> Tensor:
    """Where a running sum passes the target, which rounding may have put a little too high.

    Sums that are not numbers are passed nowhere; the last place is as good as any (see `Request.take`).
    """
    below_B1 = torch.minimum(target_B1, sums_BK[:, -1:] * (1 - 2.0**-50))
    return torch.searchsorted(sums_BK, below_B1, right=True).clamp(max=sums_BK.shape[1] - 1)


def _blocks(weights_BV: Tensor) -> Tensor:
    padded_BV = torch.nn.functional.pad(weights_BV, (0, -weights_BV.shape[1] % BLOCK))
    return padded_BV.view(len(padded_BV), -1, BLOCK)


def _kept(weights_BV: Tensor, params: SamplingParams) -> Tensor:
    """1 for the tokens that may be drawn: by min-p, then the top k, then top-p of what these hold."""
    sorted_BV, order_BV = weights_BV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(weights_BV.shape[-1], device=weights_BV.device)
    top_k_B1 = params.top_k_B.where(params.top_k_B > 0, float(weights_BV.shape[-1]))[:, None]
    sorted_BV = sorted_BV * (rank_V < top_k_B1) * (sorted_BV >= params.min_p_B[:, None] * sorted_BV[:, :1])
    sums_BV = sorted_BV.cumsum(-1, dtype=torch.float64)
    before_BV = sums_BV - sorted_BV
    inside_BV = (before_BV < params.top_p_B[:, None] * sums_BV[:, -1:]) & (sorted_BV > 0)
    kept_BV = torch.zeros_like(weights_BV)
    return kept_BV.scatter_(1, order_BV, inside_BV.to(weights_BV.dtype))


Outcome = Generated | BaseException
Drawn = Sequence[tuple[int, float]]  # tokens with their log-probabilities
WORTH_SHARING = 32  # tokens: below it, copying from another episode or waiting for it gains nothing
SPARE = 4  # a character cut at the edge of a window of text shows as up to this many others


@dataclass(eq=False)
class Request:
    """A call: what was asked, and what was drawn so far. `limit` bounds the tokens of prompt and answer together.

    `reply` receives the outcome, on the event loop `loop`; `given_up` is set by a caller who no longer
    waits. `adapter` names the adapter it is computed with; the policy as it is has the empty name.

    `followers` are calls with the same tokens so far, such as other attempts at the same task: they are computed
    once, in this call's row, and one token is drawn for each with its own random number. Those that draw another
    token part from it. What a follower has drawn is in the call that it follows.
    """

    episode: Hashable
    prompt_ids: list[int]
    sampling: SamplingConfig
    seed: int
    stop_ids: frozenset[int]
    limit: int
    tokenizer: Any = None  # for stop texts
    adapter: str = ""
    reply: Callable[[Outcome], None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    given_up: bool = False
    followers: list[Request] = field(default_factory=list)
    _uniforms: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.completion_ids if self.completion_ids else self.prompt_ids

    @property
    def together(self) -> list[Request]:
        return [self, *self.followers]

    def can_follow(self, other: Request) -> bool:
        """Whether both are the same but for their seeds, with nothing drawn yet."""
        return (
            not self.completion_ids
            and not other.completion_ids
            and self.adapter == other.adapter
            and self.prompt_ids == other.prompt_ids
            and (self.sampling, self.stop_ids, self.limit) == (other.sampling, other.stop_ids, other.limit)
        )

    @property
    def most(self) -> int:
        """How many tokens it may come to."""
        return min(len(self.prompt_ids) + self.sampling.max_new_tokens, self.limit)

    def after(self, known: int) -> list[int]:
        """The tokens after the first `known`, as far as they exist."""
        if known >= len(self.prompt_ids):
            return self.completion_ids[known - len(self.prompt_ids) :]
        return self.prompt_ids[known:] + self.completion_ids

    def foresee(self, done: int, number: int) -> list[float]:
        """The numbers between 0 and 1 with which the next tokens after the first `done` are drawn."""
        if done + number > len(self._uniforms):
            self._uniforms += [uniform(self.seed, place) for place in range(len(self._uniforms), done + number)]
        return self._uniforms[done : done + number]

    def advance(self, drawn: Sequence[Drawn]) -> tuple[list[tuple[Request, Outcome]], list[Request], int]:
        """Takes what was drawn for it and for each follower, up to where that one parts.

        Gives the calls that are complete, those that continue apart with what they have drawn, and how many were drawn.
        """
        followed, num_drawn = list(zip(self.followers, drawn[1:], strict=True)), 0
        complete: list[tuple[Request, Outcome]] = []
        apart: list[Request] = []
        for place, own in enumerate(drawn[0]):
            num_drawn += 1 + len(followed)
            others: dict[int, Request] = {}
            for follower, tokens in followed:
                token, logprob = tokens[place]
                if token == own[0]:
                    continue
                if token in others:
                    others[token].followers.append(follower)
                    continue
                others[token] = follower
                follower.completion_ids = [*self.completion_ids, token]
                follower.logprobs = [*self.logprobs, logprob]
            followed = [(one, tokens) for one, tokens in followed if tokens[place][0] == own[0]]
            self.followers = [one for one, _ in followed]
            for other in others.values():
                if (outcome := other.outcome()) is not None:
                    complete += [(one, outcome) for one in other.together]
                else:
                    apart.append(other)
            if (outcome := self.take([own])) is not None:
                complete += [(one, outcome) for one in self.together]
                break
        return complete, apart, num_drawn

    def take(self, drawn: Sequence[tuple[int, float]]) -> Outcome | None:
        """Adds tokens up to the last of the answer; the answer, if it is complete.

        An error if a probability is not a number: the weights have diverged. Other requests have other adapters.
        """
        for token, logprob in drawn:
            self.completion_ids.append(token)
            self.logprobs.append(logprob)
            if (outcome := self.outcome()) is not None:
                return outcome
        return None

    def outcome(self) -> Outcome | None:
        """The answer, if its newest token is the last."""
        if math.isnan(self.logprobs[-1]):
            return EngineError(
                "the probabilities of the next token are not numbers: the weights have diverged, "
                "perhaps by too high a learning rate"
            )
        finish: Finish = "stop"
        if self.completion_ids[-1] not in self.stop_ids and not self._ends_with_stop_text():
            if len(self.prompt_ids) + len(self.completion_ids) < self.most:
                return None
            finish = "length"
        temperature = self.sampling.temperature or 1.0
        return Generated(self.completion_ids, self.logprobs, finish, logprobs_temperature=temperature)

    def _ends_with_stop_text(self) -> bool:
        """Whether the newest token completed a stop text. The answer keeps that token, whole: ids and text agree."""
        stops = [text for text in self.sampling.stop if text]
        if not stops:
            return False
        # A character has at most four tokens, one for each of its bytes.
        window = 4 * (max(map(len, stops)) + SPARE)
        tail = self.tokenizer.decode(self.completion_ids[-window:])
        return any(text in tail for text in stops)


def draw_next(logits_BV: Tensor, requests: Sequence[Request]) -> list[list[Drawn]]:
    """The next token of each request and of its followers, with log-probabilities; no draw depends on other rows."""
    each = [(row, one, request) for row, request in enumerate(requests) for one in request.together]
    rows_NV = logits_BV if len(each) == len(requests) else logits_BV[[row for row, _, _ in each]]
    drawn = iter(draw_each(rows_NV, [(r.sampling, one.foresee(len(r.completion_ids), 1)[0]) for _, one, r in each]))
    return [[[next(drawn)] for _ in request.together] for request in requests]


def settle(outcomes: Iterable[tuple[Request, Outcome]]) -> None:
    """Brings outcomes to those who wait, with one call into each event loop.

    A call wakes the loop's thread, which then takes the interpreter from this one.
    """

    def deliver(mine: list[tuple[Request, Outcome]]) -> None:
        for request, outcome in mine:
            assert request.reply is not None
            request.reply(outcome)

    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Outcome]]] = {}
    for request, outcome in outcomes:
        if request.loop is not None:
            by_loop.setdefault(request.loop, []).append((request, outcome))
    for loop, mine in by_loop.items():
        if not loop.is_closed():  # else it has no waiter
            loop.call_soon_threadsafe(deliver, mine)


@dataclass(eq=False)
class Resident:
    """An episode's tokens whose keys and values are stored at `place`, with room for `capacity`.

    `age` is the scheduler's when the episode entered: a call during which the weights change is its last.
    `adapter` is what its calls are computed with: keys and values of different adapters are never shared.
    """

    ids: list[int] = field(default_factory=list)
    place: Any = None
    capacity: int = 0
    request: Request | None = None
    idle_since: int = 0
    age: int = 0
    adapter: str = ""


@dataclass(frozen=True)
class Span:
    """Tokens to compute for one resident, after those it has. With `draws`, one more is drawn after them."""

    resident: Resident
    tokens: list[int]
    draws: bool

    @property
    def request(self) -> Request:
        assert self.resident.request is not None
        return self.resident.request


class SpanRunner(Protocol):
    """Computes spans, of prompts at most `chunk` tokens at once. One that `merges` draws for followers, too."""

    chunk: int
    merges: bool

    def run(self, spans: Sequence[Span]) -> Sequence[Sequence[Drawn]]:
        """Computes the spans; for each that draws, one or more tokens for its request and for each follower.

        A follower's end with the first that differs from those of the request.
        """


class Store(Protocol):
    """Where keys and values lie. By default they can be cut back to any token, and none are shared."""

    def cost(self, tokens: int) -> int:
        """How much of the budget a resident with this many tokens takes."""

    def allocate(self, resident: Resident, tokens: int) -> None:
        """Makes room for `tokens`; what `resident.ids` says is stored stays."""

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        """Copies what is stored of the tokens from `begin` to `end`."""

    def reach(self, resident: Resident, length: int, *, soon: bool = False) -> int:  # noqa: ARG002
        """How many of a resident's first `length` tokens it or another can continue from.

        With `soon`, once the prompt that is being read is there.
        """
        return length

    def own(self, resident: Resident, begin: int) -> None:  # noqa: ARG002
        """Lets the resident write from token `begin` on without changing what others hold."""
        return

    def free(self, resident: Resident) -> None:
        """Releases it."""
        resident.place, resident.capacity = None, 0


def _still_wanted(request: Request) -> Request | None:
    """The call, or the first of its followers whose caller still waits, with the others of them."""
    wanted = [one for one in request.together if not one.given_up]
    if not wanted:
        return None
    first, *followers = wanted
    if first is not request:
        first.completion_ids, first.logprobs = request.completion_ids, request.logprobs
    first.followers = followers
    return first


class Scheduler:
    """The queue and the residents. `budget` is in the store's own measure."""

    def __init__(self, store: Store, *, budget: int, max_running: int, merges: bool = True) -> None:
        self.store, self.budget, self.max_running, self.merges = store, budget, max_running, merges
        self.waiting: deque[Request] = deque()
        self.residents: dict[Hashable, Resident] = {}
        self.spent = 0
        self.num_prefilled = self.num_shared = self.num_kept = self.num_dropped = 0
        self.num_drawn = self.num_states = 0  # tokens, and the states that they were drawn from
        self._clock = self._age = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(True for _ in self.running())

    def running(self) -> Iterator[Resident]:
        return (resident for resident in self.residents.values() if resident.request is not None)

    def requests(self) -> list[Request]:
        """All calls, running and waiting, with their followers."""
        heads = [*(one.request for one in self.running() if one.request), *self.waiting]
        return [one for head in heads for one in head.together]

    def forget_the_given_up(self) -> None:
        """Callers who no longer wait leave; the first of those who followed one takes its place."""
        if not any(request.given_up for request in self.requests()):
            return
        self.waiting = deque(left for request in self.waiting if (left := _still_wanted(request)))
        for name, resident in list(self.residents.items()):
            if (request := resident.request) is None:
                continue
            left = _still_wanted(request)
            if left is None:
                self.leave(resident)
            elif left is not request:
                resident.request = left
                self.drop(left.episode)
                self.residents[left.episode] = self.residents.pop(name)

    def admit(self) -> None:
        """Lets in who can run now, oldest first. Calls that are the same but for their seeds run as one."""
        if not self.waiting:
            return
        num_running = sum(len(one.request.together) for one in self.running() if one.request)
        rows = [one for one in self.running() if one.age == self._age]  # of older ones, keys are of other weights
        begun = [one.request for one in rows if one.request and not one.request.completion_ids]
        taken = {one.episode for row in self.running() if row.request for one in row.request.together}
        passed_by: list[Request] = []
        try:
            while self.waiting and num_running + len(self.waiting[0].together) <= self.max_running:
                request = self.waiting[0]  # until it is admitted: its caller must hear of it if that fails
                if request.episode in taken:
                    passed_by.append(request)
                elif self.merges and (same := next((one for one in begun if request.can_follow(one)), None)):
                    same.followers += request.together
                    num_running += len(request.together)
                    taken.update(one.episode for one in request.together)
                elif self._is_being_computed(request):
                    passed_by.append(request)
                elif self._enter(request):
                    num_running += len(request.together)
                    taken.update(one.episode for one in request.together)
                    begun.append(request)
                else:
                    break
                self.waiting.popleft()
        finally:
            self.waiting.extendleft(reversed(passed_by))

    def spans(self, most_tokens: int) -> list[Span]:
        """What to compute now: the next token of everyone who draws, and `most_tokens` of prompts."""
        spans = []
        for resident in self.running():
            assert resident.request is not None
            tokens = resident.request.after(len(resident.ids))
            if len(tokens) > 1:
                part = tokens[:most_tokens]
                most_tokens -= len(part)
                if part:
                    spans.append(Span(resident, part, len(part) == len(tokens)))
            else:
                spans.append(Span(resident, tokens, True))
        return spans

    def advance(self, span: Span, drawn: Sequence[Drawn]) -> list[tuple[Request, Outcome]]:
        """Takes what was drawn for a span; gives the calls that are complete. Those that part come next."""
        request = span.request
        before, followers = len(request.completion_ids), list(request.followers)
        try:
            complete, apart, num_drawn = request.advance(drawn)
        except BaseException:
            request.followers = followers  # they must hear of it, too
            raise
        self.num_states += len(request.completion_ids) - before
        self.num_drawn += num_drawn
        self.waiting.extendleft(reversed(apart))
        own = next((outcome for one, outcome in complete if one is request), None)
        if own is not None:
            self.leave(span.resident)
            if isinstance(own, EngineError):
                self.drop(request.episode)
        return complete

    def age(self) -> None:
        """The weights have changed: what was computed so far is used by the calls under way, and by no later one."""
        self._age += 1
        for episode in [episode for episode, one in self.residents.items() if one.request is None]:
            self.drop(episode)

    def leave(self, resident: Resident) -> None:
        """The resident's call is over; what was computed stays while there is room, unless the weights have changed."""
        assert resident.request is not None
        if resident.age != self._age:
            self.drop(resident.request.episode)
        resident.request = None
        self._clock += 1
        resident.idle_since = self._clock

    def drop(self, episode: Hashable) -> None:
        """Forgets an episode."""
        resident = self.residents.pop(episode, None)
        if resident is not None:
            self.spent -= resident.capacity
            self.store.free(resident)

    def _enter(self, request: Request) -> bool:
        resident = self.residents.get(request.episode) or Resident(age=self._age, adapter=request.adapter)
        ids = request.ids
        # The last token is read in any case: what comes next is drawn from what it says.
        common = min(common_prefix(resident.ids, ids), len(ids) - 1)
        known = self.store.reach(resident, common)
        source, shared = self._longest(request, known, computed=True)
        if self.store.cost(request.most) > resident.capacity:
            if not self._make_room(request, resident, keep=source):
                return False
            before = resident.capacity
            del resident.ids[known:]
            self.store.allocate(resident, request.most)
            self.spent += resident.capacity - before
            self.residents[request.episode] = resident  # from here on a failure below frees it
        del resident.ids[known:]
        self.num_kept += known
        if source is not None and source in self.residents.values():
            self.store.copy(source, resident, known, shared)
            resident.ids += ids[known:shared]
            self.num_shared += shared - known
        self.store.own(resident, len(resident.ids))
        self.num_prefilled += len(ids) - len(resident.ids)
        resident.request = request
        return True

    def _make_room(self, request: Request, resident: Resident, keep: Resident | None) -> bool:
        missing = self.spent - resident.capacity + self.store.cost(request.most) - self.budget
        if missing <= 0:
            return True
        idle = [(name, one) for name, one in self.residents.items() if one.request is None and one is not resident]
        # The one whose prefix is about to be copied goes last of all.
        idle.sort(key=lambda item: (item[1] is keep, item[1].idle_since))
        if sum(one.capacity for _, one in idle) < missing:
            return False
        for name, one in idle:
            if missing <= 0:
                break
            missing -= one.capacity
            self.num_dropped += 1
            self.drop(name)
        return True

    def _is_being_computed(self, request: Request) -> bool:
        """Whether another call is just computing a prefix that this one then need not."""
        resident = self.residents.get(request.episode)
        known = self.store.reach(resident, common_prefix(resident.ids, request.ids)) if resident else 0
        _, now = self._longest(request, known, computed=True)
        _, soon = self._longest(request, max(known, now), computed=False)
        return soon > 0

    def _longest(self, request: Request, known: int, *, computed: bool) -> tuple[Resident | None, int]:
        """Another episode whose tokens share a prefix worth having beside `known` tokens, the longest.

        Those are the tokens that it has, or with `computed` false will have soon.
        """
        prompt, best, length = request.ids, None, known + WORTH_SHARING - 1
        most = len(prompt) - 1
        if most <= length:
            return None, 0
        for name, one in self.residents.items():
            ids = one.ids if computed or one.request is None else one.request.prompt_ids
            # Most are no match, and one token tells: only what continues beyond the best so far is compared.
            if len(ids) <= length or ids[length] != prompt[length] or name == request.episode:
                continue
            if one.age != self._age or one.adapter != request.adapter:
                continue
            shared = min(common_prefix(ids, prompt), most)
            shared = self.store.reach(one, shared, soon=not computed) if shared > length else 0
            if shared > length:
                best, length = one, shared
                if length == most:
                    break
        return best, length if best else 0
