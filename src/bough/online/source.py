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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import fmean
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from bough.chat.template import CallBuilder
from bough.config.training import OnlineConfig
from bough.engines.base import EngineError
from bough.environments.rubric import RewardTimeoutError
from bough.errors import BoughError, InputError, RowError
from bough.event_loop import StoppedError, StopRequestedError
from bough.files import read_json
from bough.ledger import Ledger
from bough.online.files import BatchFile, EpisodeFiles, Stamp, Stamper, remove_drafts
from bough.online.gather import Gatherer, OnlineMethod, distances
from bough.online.player import LostError, Player
from bough.policy.policy import Policy
from bough.policy.processes import ProcessLostError, deal
from bough.rollouts.ray import ClusterLostError
from bough.training.method import CallSource, GroupExample
from bough.training.plan import Batch, PausedError
from bough.training.run import Around, Run, Trained, opened
from bough.trees.build import partition

log = logging.getLogger(__name__)
# What stops a run.
FAILURES = (LostError, RewardTimeoutError, EngineError, ClusterLostError)
# What a batch's file has besides its metrics.
NOT_METRICS = ("stamp", "ledgers", "tasks_unfinished")
C = TypeVar("C", bound=OnlineConfig)


def with_learners(config: C, train: Callable[[C], Trained]) -> Trained:
    """`train(config)` here, or in each of several learners on the cluster of the settings."""
    if config.cluster.learners == 1:
        return train(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--learners starts the processes that train; leave out accelerate launch or torchrun")
    from bough.rollouts.ray_learners import train_with_learners

    return train_with_learners(config, config.cluster, train)


def learn(config: C, make: Callable[[C], OnlineMethod], around: Around | None = None) -> Trained:
    """Trains the policy of a run on batches that it plays itself, by the method that `make` makes of the settings."""
    with opened(config) as run:
        run.begin()
        method = make(run.config)
        policy = run.load_policy(reference=True, temperature=method.temperature)
        with (
            around(policy, run) if around else nullcontext() as reference,
            SharedSource(run, method, policy) as source,
            run.trainer(policy, method, source, reference=reference) as trainer,
        ):
            counters = trainer.train(run.resumed)
            ledgers = source.ledgers(counters.step)
        return run.finish(counters, ledgers)


class OnlineSource:
    """Plays a batch of groups whenever the last one is used up.

    A batch has `batch_size` tasks with `group_size` attempts each; `Pace` says which. A request to stop
    the run ends the wait for episodes with StopRequestedError.
    """

    def __init__(self, run: Run[Any], method: OnlineMethod, policy: Policy) -> None:
        config: OnlineConfig = run.config
        self._stamper = Stamper(config, policy.model)
        self._files = EpisodeFiles(run.folder.episodes, self._stamper.settings)
        self._builder = CallBuilder(run.template, max_length=config.calls.max_length, stride=config.calls.stride)
        self._interrupts = run.interrupts
        self.player = Player(config, policy, run.template, self._files, self._interrupts)
        self.gatherer = Gatherer(config, method, self.player, self._builder, self._files)
        self.config, self.policy = config, policy
        self._watch = Watch()
        self._folder = run.folder.rollouts
        self._updates = config.rollouts.updates
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
        except FAILURES as error:
            message = f"batch {number} cannot be played: {error}"
            if step == 0:
                raise BoughError(message) from error
            raise PausedError(f"{message}; the weights of step {step} are saved, --resume continues") from error
        self.policy.train(training)
        self._batches = self._mini_batches(examples, number) if examples else []
        if not self._batches:
            why = f"({self.gatherer.groups}){self.gatherer.flat.advice()}"
            if number == 0:
                raise BoughError(f"the first tasks give no training signal {why}")
            log.warning("Batch %d gives no training signal %s", number, why)
            return
        self.gatherer.flat.warn()
        if self.config.held_out.watch and (alarm := self._watch.alarm()) is not None:
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
        every = self.config.held_out.every
        try:
            with self._interrupts.calling(self.player.stream.interrupt):
                gathered = self.gatherer.batch(self._number)
            held_out = self.player.held_out() if gathered and every and self._number % every == 0 else {}
            if self._interrupts.requested:  # the last episode ended first; all of them are on disk
                raise StopRequestedError
        except BaseException:  # the sampler is idle only when nothing is played, and the run is to stop now
            self.player.stream.cancel()
            raise
        finally:
            self.player.pause()
        if gathered is None:
            return []
        groups, examples, values = gathered
        logprobs = self._logprobs(examples) if self._updates > 1 else None
        examples = examples if logprobs is None else _with_logprobs(examples, logprobs)
        values = values | distances(self.policy, groups, examples) | held_out
        values |= {"tasks_drawn": self.gatherer.pace.next_number} | self.player.lap()
        file.write(groups, values | self.gatherer.state(), stamp)
        self._files.keep_only(self.gatherer.pace.unfinished, self.gatherer.pace.next_number)
        if logprobs is not None:
            file.keep_logprobs(stamp, _completions(examples), logprobs)
        self._note(values, stamp, 0)
        return examples

    def _read(self, file: BatchFile, stamp: Stamp, update: int) -> list[GroupExample]:
        """The batch on file, whose groups were counted when it was played. RowError if it cannot be used."""
        source = CallSource(self._builder, Ledger("calls"))
        examples = [self.gatherer.method.example(group, source) for group in file.groups()]
        if self._updates > 1:  # they need their log-probabilities before the first update
            tokens = _completions(examples)
            logprobs = file.logprobs(stamp, tokens)
            if logprobs is None and update > 0:
                raise RowError("no_logprobs", "the log-probabilities before the first update are missing")
            if logprobs is None:
                logprobs = self._logprobs(examples)
                file.keep_logprobs(stamp, tokens, logprobs)
            examples = _with_logprobs(examples, logprobs)
        self._files.weights[self._number] = stamp.weights
        self._note(self._restored(file.numbers()), stamp, update)
        return examples

    def _note(self, values: dict[str, Any], stamp: Stamp, update: int) -> None:
        """Notes the metrics of the batch that is trained on now; its first update logs them."""
        self._watch.see(values)
        self._values = values if update == 0 else {}
        self._learning = stamp.number

    @torch.no_grad()
    def _logprobs(self, examples: list[GroupExample]) -> Tensor:
        calls = [call for example in examples for call in example.calls]
        return torch.cat(self.policy.logprobs(calls, budget=self.config.machine.tokens_per_pass)).cpu()

    def _mini_batches(self, examples: list[GroupExample], number: int) -> list[list[GroupExample]]:
        if self._updates > 1:
            examples = random.Random(f"{self.config.seed} {number}").sample(examples, len(examples))  # noqa: S311
        # Fewer groups than updates: the same ones again rather than a step without any.
        return [examples[i :: self._updates] or [examples[i % len(examples)]] for i in range(self._updates)]

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


# The batches of an online run for all of its learner processes.
# The first process plays, gathers and writes files; it deals each batch out by tokens, and the others get their share
# of it, its metrics and its errors from the first. With one process all of this is `OnlineSource`. Where the weights
# are sharded, the first process has a whole copy to sample with; all of them take part in renewing it.


class SharedSource:
    """A `Source` in each process. Only the first one builds environments and a sampler."""

    def __init__(self, run: Run[Any], method: OnlineMethod, policy: Policy) -> None:
        config: OnlineConfig = run.config
        self._run, self._processes, self._policy = run, run.processes, policy
        self._updates = config.rollouts.updates
        self._num_steps = config.optimizer.max_steps or 0
        self._number = -1
        self.levels: Sequence[int] = []
        self._source: OnlineSource | None = None
        self._copy: Policy | None = None

        def build() -> None:
            if policy.sharded:
                self._copy = run.load_policy(reference=True, temperature=policy.temperature, whole=True)
            self._source = OnlineSource(run, method, self._copy or policy)

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

    def restore(self, levels: Sequence[int]) -> None:
        self.levels = list(levels)
        if self._source is not None:
            self._source.restore(levels)

    def batch(self, step: int) -> Batch | None:
        """This process's share of the batch of step `step`; errors of the first process are raised in all."""
        if step // self._updates != self._number:
            self._number = step // self._updates
            if self._policy.sharded:
                weights = self._policy.weights()
                if self._copy is not None:
                    missing = self._copy.model.load_state_dict(weights, strict=False)
                    assert not missing.unexpected_keys, missing.unexpected_keys
        batch, self.levels = self._processes.first_deals(lambda: self._played(step))
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

    def _played(self, step: int) -> list[tuple[Batch | None, list[int]]]:
        """In the first process: what each of them is told of a step, its batch and the source's levels."""
        assert self._source is not None
        batch, count = self._source.batch(step), self._processes.count
        batches = [batch] * count
        if batch is not None and count > 1:
            first, *others = shares(cast("Sequence[GroupExample]", batch.examples), count)
            batches = [replace(batch, own=first), *(Batch(own, batch.epoch, batch.values, own) for own in others)]
        return [(one, self._source.levels) for one in batches]


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
# may grow or shrink, to what fraction of its initial value entropy may fall, and how far the policy may be from its
# start, in nats per token.
DROP, GROWTH, COLLAPSE, FAR = 0.15, 3.0, 0.1, 1.0


class Watch:
    """Remembers each batch's numbers. `alarm` is a sentence, or None."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.held_out: list[tuple[float, float]] = []

    def see(self, values: dict[str, Any]) -> None:
        self.batches.append(values)
        if (success := values.get("eval_success")) is not None:
            self.held_out.append((float(success), self._means("reward")[1] or 0.0))

    def alarm(self) -> str | None:
        if len(self.held_out) > 1:
            (best, reward_then), (now, reward_now) = max(self.held_out), self.held_out[-1]
            if best - now > DROP and reward_now > reward_then:
                return (
                    f"held-out success fell from {best:.1%} to {now:.1%} while the reward rose from {reward_then:.3g} "
                    f"to {reward_now:.3g}: the policy may be gaming the reward"
                )
        if len(self.batches) < FIRST + LAST:
            return None
        for name, what in (("reply_tokens", "tokens per reply"), ("turns", "turns per episode")):
            before, length = self._means(name)
            if before and length and not 1 / GROWTH <= length / before <= GROWTH:
                return f"{what} went from {before:.3g} to {length:.3g}"
        before, entropy = self._means("entropy")
        if before and entropy is not None and entropy < before * COLLAPSE:
            return f"entropy fell from {before:.3g} to {entropy:.3g} nats per token: the policy hardly varies any more"
        distance = self._means("start_kl")[1]
        if distance is not None and distance > FAR:
            return f"the policy is {distance:.3g} nats per token away from its start"
        return None

    def _means(self, name: str) -> list[float | None]:
        """A number's mean over the first batches and over the last ones."""
        known = ([one[name] for one in some if name in one] for some in (self.batches[:FIRST], self.batches[-LAST:]))
        return [fmean(values) if values else None for values in known]
