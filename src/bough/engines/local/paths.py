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
from bough.engines.local.ragged import RaggedRunner, RaggedStore
from bough.engines.local.reader import Reader, TokenReader, agrees, free_bytes, trial_length, trial_tokens
from bough.engines.local.schedule import Request, Resident, Span, SpanRunner, Store
from bough.errors import InputError
from bough.policy.policy import Policy
from bough.policy.processes import unused_bytes
from bough.types import Call

if TYPE_CHECKING:
    from bough.engines.local.fused import FusedDecoder

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
                drawn = request.take(new)
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
