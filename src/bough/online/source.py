"""Batches of groups that the policy in training plays itself.

Each batch is written to a file before it is trained on, and each episode when it ends, so a
run that was killed resumes with exactly the episodes it had. What was sampled with other
settings or weights than the run resumes with is played again.

With `max_staleness` 0 the sampler reads the weights that are trained, and nothing is in flight
while the policy trains. With more it has a copy of them and plays later batches meanwhile; it
gets the new weights when the next batch is gathered, and what is in flight continues with them.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from bough.chat.builder import CallBuilder
from bough.config.online import OnlineConfig, WatchConfig
from bough.engines.base import EngineError
from bough.environments.rubric import RewardTimeoutError
from bough.errors import BoughError, InputError, RowError
from bough.event_loop import StoppedError, StopRequestedError
from bough.files import read_json
from bough.ledger import Ledger
from bough.online.files import BatchFile, EpisodeFiles, Stamp, Stamper, remove_drafts
from bough.online.gather import Gatherer, distances
from bough.online.method import GroupExample, OnlineMethod
from bough.online.player import LostError, Player
from bough.policy.policy import Policy
from bough.policy.processes import ProcessLostError, deal
from bough.rollouts.ray import ClusterLostError
from bough.training.method import CallSource
from bough.training.plan import Batch, PausedError
from bough.training.run import Run, Trained
from bough.trees.build import partition

log = logging.getLogger(__name__)

# What stops a run, and what it means for the batch.
PROBLEMS: dict[type[BoughError], str] = {
    LostError: "has nothing to learn from",
    RewardTimeoutError: "cannot be scored",
    EngineError: "cannot be sampled",
    ClusterLostError: "cannot be played",
}
# What a batch's file has besides its metrics.
NOT_METRICS = ("stamp", "ledgers", "tasks_unfinished", "task_pool")


# Called with the numbers of every batch before it is trained on; may add metrics to them.
See = Callable[[dict[str, Any]], dict[str, float]]


class OnlineSource:
    """Plays a batch of groups whenever the last one is used up.

    A batch has `batch_size` tasks (times `gradient_accumulation_steps`) with `group_size`
    attempts each; `Pace` says which. A request to stop the run ends the wait for episodes with
    StopRequestedError.
    """

    def __init__(self, run: Run[Any], method: OnlineMethod, policy: Policy, see: See) -> None:
        config: OnlineConfig = run.config
        self._stamper = Stamper(config, policy.model)
        self._files = EpisodeFiles(run.folder.episodes, self._stamper.settings)
        self._builder = CallBuilder(run.template, max_length=config.calls.max_length, stride=config.calls.stride)
        self._interrupts = run.interrupts
        self.player = Player(config, policy, run.template, self._files, self._interrupts)
        self.gatherer = Gatherer(config, method, self.player, self._builder, self._files)
        self.config, self.policy = config, policy
        self._watch = Watch(config.watch)
        self._see = see
        self._folder = run.folder.rollouts
        self._updates = config.rollouts.updates * config.rollouts.passes
        self._number = -1
        self._learning = 0  # the number of the stamp of the batch that is trained on
        self._ahead = False  # whether later batches are being played
        self._batches: list[list[GroupExample]] = []
        self._values: dict[str, Any] = {}

    @property
    def levels(self) -> list[int]:
        """Which batch is trained on: a checkpoint in the middle of a batch resumes with this one or none."""
        return [self._learning]

    def restore(self, levels: Sequence[int]) -> None:
        self._learning = levels[-1]

    def batch(self, step: int) -> Batch | None:
        self.player.meter.training(False)
        number, update = divmod(step, self._updates)
        if number != self._number:
            self._begin(number, update, step)
        if not self._batches:
            return None
        self.player.meter.training(True)
        values, self._values = self._values, {}
        return Batch(self._batches[update], number, values)

    def close(self) -> None:
        self.player.close()

    def _begin(self, number: int, update: int, step: int) -> None:
        """Batch `number`: from its file if it was played before a kill, else played now."""
        if self._number < 0:
            self._catch_up(number)
        file = BatchFile(self._folder, number)
        training = self.policy.training
        self.policy.eval()
        self._number, stamp = number, self._stamper.stamp()
        try:
            examples = self._on_file(file, stamp, update) or self._played(file, stamp, step)
        except tuple(PROBLEMS) as error:
            problem = next(words for known, words in PROBLEMS.items() if isinstance(error, known))
            message = f"batch {number} {problem}: {error}"
            if step == 0:
                raise BoughError(message) from error
            raise PausedError(f"{message}; the weights of step {step} are saved, --resume continues") from error
        self.policy.train(training)
        self._batches = list(self._mini_batches(examples, number)) if examples else []
        if not self._batches:
            why = f"({self.gatherer.groups}){self.gatherer.flat.advice()}"
            if number == 0:
                raise BoughError(f"the first tasks give no training signal {why}")
            log.warning("Batch %d gives no training signal %s", number, why)
            return
        self.gatherer.flat.warn()
        if (alarm := self._watch.alarm()) is not None:
            raise PausedError(f"paused before batch {number}: {alarm}; --resume --no-watch continues anyway")

    def _on_file(self, file: BatchFile, now: Stamp, update: int) -> list[GroupExample]:
        """The batch as it was played before a kill; empty if it is missing or of other settings or weights.

        Before its first update, the weights must be those that sampled it. After that they have
        changed, and the checkpoint knows which batch changed them.
        """
        if (found := file.stamp) is None or self._ahead:
            return []
        if found == now if update == 0 else (found.settings, found.number) == (now.settings, self._learning):
            try:
                return self._read(file, found, update)
            except RowError as error:
                log.warning("%s: %s", file.path, error)
        log.warning("%s was sampled with different settings or weights: the batch is played again.", file.path)
        return []

    def _played(self, file: BatchFile, stamp: Stamp, step: int) -> list[GroupExample]:
        """Plays one batch and writes it, if there is anything to learn from it."""
        self._files.weights[self._number] = stamp.weights
        self._ahead = self.config.rollouts.max_staleness > 0
        self.player.renew(step, self._number)
        try:
            with self._interrupts.calling(self.player.stream.interrupt):
                gathered = self.gatherer.batch(self._number)
            held_out = self._held_out() if gathered else {}
            if self._interrupts.requested:  # the last episode ended first; all of them are on disk
                raise StopRequestedError
        except BaseException:  # the sampler is idle only when nothing is played, and the run is to stop now
            self.player.stream.cancel()
            raise
        finally:
            self.player.pause()
        if gathered is None:
            return []
        logprobs = self._logprobs(gathered.examples) if self._updates > 1 else None
        examples = gathered.examples if logprobs is None else _with_logprobs(gathered.examples, logprobs)
        values = gathered.values | distances(self.policy, gathered.groups, examples) | held_out
        values |= {"tasks_drawn": self.gatherer.pace.next_number} | self.player.meter.lap()
        file.write(gathered.groups, values | self.gatherer.state(), stamp)
        self._files.keep_only(self.gatherer.pace.unfinished, self.gatherer.pace.next_number)
        if logprobs is not None:
            file.keep_logprobs(stamp, _completions(examples), logprobs)
        self._note(values, stamp, 0)
        return examples

    def _held_out(self) -> dict[str, Any]:
        every = self.config.held_out.every
        return self.player.held_out() if every and self._number % every == 0 else {}

    def _read(self, file: BatchFile, stamp: Stamp, update: int) -> list[GroupExample]:
        """The batch on file, whose groups were counted when it was played. RowError if it cannot be used."""
        source = CallSource(self._builder, Ledger("calls"))
        examples = [self.gatherer.method.example(group, source) for group in file.groups()]
        examples = self._with_old_logprobs(examples, file, stamp, update)
        self._files.weights[self._number] = stamp.weights
        self._note(self._restored(file.numbers()), stamp, update)
        return examples

    def _note(self, values: dict[str, Any], stamp: Stamp, update: int) -> None:
        """Notes the metrics of the batch that is trained on now; its first update logs them."""
        self._watch.see(values)
        more = self._see(values)
        self._values = values | more if update == 0 else {}
        self._learning = stamp.number

    def _with_old_logprobs(
        self, examples: list[GroupExample], file: BatchFile, stamp: Stamp, update: int
    ) -> list[GroupExample]:
        """The examples with their log-probabilities before the first update, which a batch with several needs."""
        if self._updates == 1:
            return examples
        tokens = _completions(examples)
        logprobs = file.logprobs(stamp, tokens)
        if logprobs is None and update > 0:
            raise RowError("no_logprobs", "the log-probabilities before the first update are missing")
        if logprobs is None:
            logprobs = self._logprobs(examples)
            file.keep_logprobs(stamp, tokens, logprobs)
        return _with_logprobs(examples, logprobs)

    @torch.no_grad()
    def _logprobs(self, examples: list[GroupExample]) -> Tensor:
        calls = [call for example in examples for call in example.calls]
        return torch.cat(self.policy.logprobs(calls, budget=self.config.machine.tokens_per_pass)).cpu()

    def _mini_batches(self, examples: list[GroupExample], number: int) -> Iterator[list[GroupExample]]:
        rng = random.Random(f"{self.config.seed} {number}")  # noqa: S311  no secret
        count = self.config.rollouts.updates
        for _ in range(self.config.rollouts.passes):
            shuffled = rng.sample(examples, len(examples)) if count > 1 else examples
            # Fewer groups than updates: the same ones again rather than a step without any.
            yield from [shuffled[i::count] or [shuffled[i % len(shuffled)]] for i in range(count)]

    def _restored(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a batch on file; the tasks drawn and the ledgers are then as they were after it."""
        self.gatherer.restore(numbers)
        return {name: value for name, value in numbers.items() if name not in NOT_METRICS}

    def _catch_up(self, number: int) -> None:
        """Restores what the batches before this one have used, and shows them to the watch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(self._folder)
        for earlier in range(number):
            file = BatchFile(self._folder, earlier)
            if numbers := file.numbers():
                self._watch.see(self._restored(numbers))
                self._files.weights[earlier] = (file.stamp or Stamp("", "")).weights
        self._files.keep_only(self.gatherer.pace.unfinished, self.gatherer.pace.next_number)


def _completions(examples: list[GroupExample]) -> Tensor:
    """The sampled tokens of all calls."""
    return torch.tensor([token for example in examples for call in example.calls for token in call.completion_ids])


def _with_logprobs(examples: list[GroupExample], logprobs: Tensor) -> list[GroupExample]:
    """The examples with the log-probabilities of their sampled tokens before the first update."""
    sizes = [len(call.completion_ids) for example in examples for call in example.calls]
    pieces = iter(torch.split(logprobs, sizes))
    return [replace(example, old_logprobs=tuple(next(pieces) for _ in example.calls)) for example in examples]


C = TypeVar("C", bound=OnlineConfig)


def with_learners(config: C, train: Callable[[C], Trained]) -> Trained:
    """`train(config)` here, or in each of several learners on the cluster of the settings."""
    if config.cluster.learners == 1:
        return train(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--learners starts the processes that train; leave out accelerate launch or torchrun")
    from bough.rollouts.ray_learners import train_with_learners

    return train_with_learners(config, config.cluster, train)


# The batches of an online run for all of its learner processes.
# The first process plays, gathers and writes files; it deals each batch out by tokens, and the others get their share
# of it, its metrics and its errors from the first. With one process all of this is `OnlineSource`. Where the weights
# are sharded, the first process has a whole copy to sample with; all of them take part in renewing it.

# What the first process says of a step to one process: its batch, the source's levels, and the numbers that `see` was
# called with, if it was.
Told = tuple[Batch | None, list[int], dict[str, Any] | None]


class SharedSource:
    """A `Source` in each process. Only the first one builds environments and a sampler."""

    def __init__(self, run: Run[Any], method: OnlineMethod, policy: Policy, *, see: See | None = None) -> None:
        """`see` is called in every process with the numbers of each batch, and may add metrics to them."""
        config: OnlineConfig = run.config
        self._run, self._processes, self._see, self._policy = run, run.processes, see, policy
        self._updates = config.rollouts.updates * config.rollouts.passes
        self._num_steps = config.optimizer.max_steps or 0
        self._number = -1
        self._seen: dict[str, Any] | None = None
        self.levels: list[int] = []
        self._source: OnlineSource | None = None
        self._copy: Policy | None = None

        def build() -> None:
            if policy.sharded:
                self._copy = run.load_policy(reference=True, temperature=policy.temperature, whole=True)
            self._source = OnlineSource(run, method, self._copy or policy, self._note)

        self._processes.first_does(build)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not isinstance(error, StoppedError):  # else all processes know
                self._processes.report_failure(error)
        finally:
            if self._source is not None:
                self._source.close()
        if error is not None and ProcessLostError.explains(error):
            raise ProcessLostError from error

    def __len__(self) -> int:
        return self._num_steps

    def knows(self, step: int) -> bool:  # noqa: ARG002  what is played depends on the weights
        return False

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self._updates == 0

    def end_epoch(self, success: float) -> None:
        """No task depends on a success rate: the order is fixed."""

    def restore(self, levels: Sequence[int]) -> None:
        self.levels = list(levels)
        if self._source is not None:
            self._source.restore(levels)

    def batch(self, step: int) -> Batch | None:
        """This process's share of the batch of step `step`; errors of the first process are raised in all."""
        if step // self._updates != self._number:
            self._number = step // self._updates
            if self._policy.sharded:
                self._renew()
        batch, self.levels, seen = self._processes.first_deals(lambda: self._played(step))
        if self._source is None and self._see is not None and seen is not None:
            self._see(seen)
        return batch

    def ledgers(self, last_step: int) -> list[dict[str, Any]]:
        """The ledgers after the last step, as JSON; those on file where a resumed run had nothing left to play."""

        def read() -> list[dict[str, Any]]:
            assert self._source is not None
            file, resumed = self._run.folder.ledger, self._run.resumed
            if resumed and resumed.step == last_step and file.exists():
                try:
                    on_file: list[dict[str, Any]] = read_json(file)
                except ValueError as error:
                    raise InputError(f"{file} is damaged: {error}") from None
                return on_file
            return [ledger.to_json() for ledger in self._source.gatherer.ledgers]

        return self._processes.first_does(read)

    def _played(self, step: int) -> list[Told]:
        """In the first process: what each of them is told of a step."""
        assert self._source is not None
        self._seen = None
        batch, count = self._source.batch(step), self._processes.count
        batches = [batch] * count
        if batch is not None and count > 1:
            first, *others = shares(cast("Sequence[GroupExample]", batch.examples), count)
            batches = [replace(batch, own=first), *(Batch(own, batch.epoch, batch.values, own) for own in others)]
        return [(one, self._source.levels, self._seen) for one in batches]

    def _note(self, values: dict[str, Any]) -> dict[str, float]:
        """The first process's `see`."""
        self._seen = values
        return self._see(values) if self._see is not None else {}

    def _renew(self) -> None:
        """Puts the present weights into the copy."""
        weights = self._policy.weights()
        if self._copy is not None:
            missing = self._copy.model.load_state_dict(weights, strict=False)
            assert not missing.unexpected_keys, missing.unexpected_keys


# A batch in shares, one per learner process, of nearly equal numbers of tokens.
# A group is a token tree. Where it is larger than a process's fair share it is cut into subtrees that repeat only
# their path from the root; then the largest tree goes to the process with the fewest tokens so far. Losses and
# gradients are sums over calls, so only rounding depends on it.


def shares(examples: Sequence[GroupExample], count: int) -> list[list[GroupExample]]:
    """The examples dealt out to `count` processes, each share in the order of the batch."""
    pieces = [piece for example in examples for piece in _pieces(example, None)]
    fair = -(-sum(size for _, size in pieces) // count)
    pieces = [
        part for example, size in pieces for part in (_pieces(example, fair) if size > fair else [(example, size)])
    ]
    dealt = deal([size for _, size in pieces], count)
    return [[pieces[i][0] for i in share] for share in dealt]


def _pieces(example: GroupExample, budget: int | None) -> list[tuple[GroupExample, int]]:
    """The example in pieces of at most `budget` tokens, as far as single calls allow it, each with its tokens."""
    everything = sum(len(call.prompt_ids) + len(call.completion_ids) for call in example.calls)
    parts = partition(example.calls, budget or everything)
    if len(parts) <= 1:
        return [(example, sum(part.num_tokens for part in parts))]
    return [
        (_some(example, sorted(part.calls), first=number == 0), part.num_tokens) for number, part in enumerate(parts)
    ]


def _some(example: GroupExample, chosen: list[int], *, first: bool) -> GroupExample:
    """Some of the calls. The first piece of a group has its denominator: what pieces add to a step's must add up."""
    old = example.old_logprobs
    return replace(
        example,
        calls=[example.calls[c] for c in chosen],
        advantages=tuple(example.advantages[c] for c in chosen),
        weights=tuple(example.weights[c] for c in chosen),
        old_logprobs=tuple(old[c] for c in chosen) if old else (),
        denominator=example.denominator if first else 0.0,
    )


# Watches over a run that learns from its own play, and says when something has gone wrong.
# A reward can rise for the wrong reasons. What gives that away: held-out success falls, replies or episodes grow or
# shrink without end, the policy no longer varies, or it has moved far away from its start.

# Normal is the mean of this many first batches; now is the mean of this many last ones.
FIRST, LAST = 3, 3


# What is suspicious: how far held-out success may fall below its best while the reward rises, by what factor lengths
# may grow or shrink, and to what fraction of its initial value entropy may fall.
DROP, GROWTH, COLLAPSE = 0.15, 3.0, 0.1


@dataclass
class Watch:
    """Remembers each batch's numbers. `alarm` is a sentence, or None."""

    config: WatchConfig
    batches: list[dict[str, float]] = field(default_factory=list)
    held_out: list[tuple[float, float]] = field(default_factory=list)

    def see(self, values: dict[str, Any]) -> None:
        self.batches.append({name: float(value) for name, value in values.items() if isinstance(value, int | float)})
        if (success := values.get("eval_success")) is not None:
            self.held_out.append((float(success), self._now("reward") or 0.0))

    def alarm(self) -> str | None:
        if not self.config.enabled or len(self.batches) < FIRST + LAST:
            return self._fallen() if self.config.enabled else None
        return self._fallen() or self._drifted() or self._collapsed() or self._strayed()

    def _fallen(self) -> str | None:
        if len(self.held_out) < 2:
            return None
        best, reward_then = max(self.held_out)
        now, reward_now = self.held_out[-1]
        if best - now > DROP and reward_now > reward_then:
            return (
                f"held-out success fell from {best:.1%} to {now:.1%} while the reward rose from {reward_then:.3g} to "
                f"{reward_now:.3g}: the policy may be gaming the reward"
            )
        return None

    def _drifted(self) -> str | None:
        for name, what in (("reply_tokens", "tokens per reply"), ("turns", "turns per episode")):
            before, now = self._first(name), self._now(name)
            if before and now and not 1 / GROWTH <= now / before <= GROWTH:
                return f"{what} went from {before:.3g} to {now:.3g}"
        return None

    def _collapsed(self) -> str | None:
        before, now = self._first("entropy"), self._now("entropy")
        if before and now is not None and now < before * COLLAPSE:
            return f"entropy fell from {before:.3g} to {now:.3g} nats per token: the policy hardly varies any more"
        return None

    def _strayed(self) -> str | None:
        now = self._now("start_kl")
        if now is not None and now > self.config.kl:
            return f"the policy is {now:.3g} nats per token away from its start"
        return None

    def _first(self, name: str) -> float | None:
        return _mean([batch[name] for batch in self.batches[:FIRST] if name in batch])

    def _now(self, name: str) -> float | None:
        return _mean([batch[name] for batch in self.batches[-LAST:] if name in batch])


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
