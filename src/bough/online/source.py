"""Batches of groups that the policy in training plays itself.

Each batch is written to a file before it is trained on, so a run that was killed resumes
with exactly the episodes it had. A batch that was sampled with other settings or weights
than the run resumes with is played again.

The sampler reads the weights that are trained; nothing is loaded or copied between them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.calls.template import ChatTemplate
from bough.errors import BoughError, RowError
from bough.ledger import Ledger
from bough.methods.examples import CallSource, count_calls
from bough.methods.grpo import GRPO, GroupExample, GRPOConfig
from bough.online.batch_file import BatchFile
from bough.online.player import LostError, Played, Player
from bough.online.stamp import Stamp, Stamper
from bough.online.watch import Watch
from bough.policy.policy import Policy
from bough.rewards.reward import RewardTimeoutError
from bough.rundir import RunDir
from bough.training.source import Batch, PausedError
from bough.types import Call, Group

log = logging.getLogger(__name__)

# Draws without a single group to learn from: the first may be bad luck, this many in a row are not.
DRAWS = 4


class OnlineSource:
    """Plays a batch of groups whenever the last one is used up.

    A batch has `batch_size` tasks (times `gradient_accumulation_steps`) with `group_size`
    attempts each. Groups that teach nothing are dropped: other tasks are tried in their
    place, up to `resample` times as many. If none of them teaches anything, the draw is
    repeated, `DRAWS` times in all.
    """

    def __init__(self, config: GRPOConfig, policy: Policy, template: ChatTemplate, run: RunDir) -> None:
        assert config.optimizer.max_steps is not None  # the settings require it
        self._stamper = Stamper(config, policy.model)
        self.player = Player(config, policy, template)
        self.config, self.policy, self.num_steps = config, policy, config.optimizer.max_steps
        self._method = GRPO(config.model_copy(update={"reward": self.player.reward}))
        self.groups, self.calls, self.episodes = Ledger("groups"), Ledger("calls"), Ledger("episodes")
        self._builder = CallBuilder(template, max_length=config.calls.max_length, stride=config.calls.stride)
        self._watch = Watch(config.watch)
        self._folder = run.rollouts
        self._size = config.optimizer.batch_size * config.optimizer.gradient_accumulation_steps
        self._updates = config.rollouts.updates * config.rollouts.passes
        self._drawn = 0  # tasks so far
        self._number = -1
        self._learning = 0  # the number of the stamp of the batch that is trained on
        self._batches: list[list[GroupExample]] = []
        self._values: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.num_steps

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self._updates == 0

    @property
    def ledgers(self) -> list[Ledger]:
        return [self.groups, self.calls, self.episodes]

    @property
    def levels(self) -> list[int]:
        """Which batch is trained on: a checkpoint in the middle of a batch resumes with this one or none."""
        return [self._learning]

    def end_epoch(self, success: float) -> None:
        """No task depends on a success rate: the order is fixed."""

    def restore(self, levels: Sequence[int]) -> None:
        self._learning = levels[-1]

    def batch(self, step: int) -> Batch | None:
        number, update = divmod(step, self._updates)
        if number != self._number:
            self._begin(number, update, step)
        if not self._batches:
            return None
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
        self.player.renew(step)
        self._number, stamp = number, self._stamper.stamp()
        try:
            examples = self._on_file(file, stamp, update) or self._played(file, stamp, number)
        except (LostError, RewardTimeoutError) as error:
            problem = "has nothing to learn from" if isinstance(error, LostError) else "cannot be scored"
            message = f"batch {number} {problem}: {error}"
            if step == 0:
                raise BoughError(message) from error
            raise PausedError(f"{message}; the weights of step {step} are saved, --resume continues") from error
        self.policy.train(training)
        self._batches = list(self._mini_batches(examples, number)) if examples else []
        if not self._batches and number == 0:
            raise BoughError(f"the first tasks teach nothing ({self.groups}): are they all too hard or too easy?")
        if self._batches and (alarm := self._watch.alarm()) is not None:
            raise PausedError(f"paused before batch {number}: {alarm}; --resume --no-watch continues anyway")

    def _on_file(self, file: BatchFile, now: Stamp, update: int) -> list[GroupExample]:
        """The batch as it was played before a kill; empty if it is missing or of other settings or weights.

        Before its first update, the weights must be those that sampled it. After that they have
        changed, and the checkpoint knows which batch changed them.
        """
        if (found := file.stamp) is None:
            return []
        if found == now if update == 0 else (found.settings, found.number) == (now.settings, self._learning):
            try:
                return self._read(file, found, update)
            except RowError as error:
                log.warning("%s: %s", file.path, error)
        log.warning("%s was sampled with different settings or weights: the batch is played again.", file.path)
        return []

    def _played(self, file: BatchFile, stamp: Stamp, number: int) -> list[GroupExample]:
        """Plays one batch with the weights as they are and writes it, if there is anything to learn from it.

        Raises LostError if a draw lost more episodes than it finished and nothing can be learnt from the rest.
        """
        played = Played()
        for _ in range(DRAWS):
            taught, drawn = self._draw()
            played += drawn
            if taught:
                groups, examples = [group for group, _ in taught], [example for _, example in taught]
                values = self._measure(number, groups, played)
                file.write(groups, values | self._state(), stamp)
                examples = self._with_old_logprobs(examples, file, stamp, 0)
                self._note(values, stamp, 0)
                return examples
            if len(drawn.lost) > drawn.episodes:
                raise LostError(drawn)
        return []

    def _draw(self) -> tuple[list[tuple[Group, GroupExample]], Played]:
        """Groups that teach something, as recorded and as examples, and all that was played for them."""
        config, taught, played = self.config, list[tuple[Group, GroupExample]](), Played()
        budget = int(self._size * config.rollouts.resample)
        while budget > 0 and len(taught) < self._size:
            count = min(self._size - len(taught), budget)
            tasks = self.player.tasks(self._drawn, count)
            # A small environment repeats its tasks, even within one batch, but never with the same seeds.
            seed = config.seed * 1_000_003 + self._drawn
            self._drawn += count
            budget -= count
            tried = self.player.groups(tasks, seed)
            self._count_losses(tried)
            played += tried
            for group in tried.groups:
                if (example := self._example(group)) is not None:
                    taught.append((group, example))
            if len(tasks) > 1 and not tried.groups:
                break  # one task may break its environment; where several lose every episode, it is broken itself
        return taught, played

    def _count_losses(self, tried: Played) -> None:
        self.episodes.keep(tried.episodes)
        if tried.lost:
            self.episodes.drop("lost", len(tried.lost))
        if tried.tasks_lost:
            self.groups.drop("lost", tried.tasks_lost)

    def _example(self, group: Group) -> GroupExample | None:
        """The group as an example, counted in the ledgers; None if it teaches nothing."""
        calls = Ledger("calls")
        try:
            example = self._method.example(group, CallSource(self._builder, calls))
        except RowError as error:
            self.groups.drop(error.reason)
            count_calls(self.calls, calls, 0, error.reason)
            return None
        self.groups.keep()
        count_calls(self.calls, calls, len(example.calls), "no_weight")
        return example

    def _read(self, file: BatchFile, stamp: Stamp, update: int) -> list[GroupExample]:
        """The batch on file, whose groups were counted when it was played. RowError if it cannot be used."""
        source = CallSource(self._builder, Ledger("calls"))
        examples = [self._method.example(group, source) for group in file.groups()]
        examples = self._with_old_logprobs(examples, file, stamp, update)
        self._note(self._restored(file.numbers()), stamp, update)
        return examples

    def _note(self, values: dict[str, Any], stamp: Stamp, update: int) -> None:
        """Notes the metrics of the batch that is trained on now; its first update logs them."""
        self._watch.see(values)
        self._values = values if update == 0 else {}
        self._learning = stamp.number

    def _with_old_logprobs(
        self, examples: list[GroupExample], file: BatchFile, stamp: Stamp, update: int
    ) -> list[GroupExample]:
        """The examples with their log-probabilities before the first update, which a batch with several needs."""
        if self._updates == 1:
            return examples
        calls = [call for example in examples for call in example.calls]
        tokens = torch.tensor([token for call in calls for token in call.completion_ids])
        logprobs = file.logprobs(stamp, tokens)
        if logprobs is None and update > 0:
            raise RowError("no_logprobs", "the log-probabilities before the first update are missing")
        if logprobs is None:
            logprobs = self._logprobs(calls)
            file.keep_logprobs(stamp, tokens, logprobs)
        pieces = iter(torch.split(logprobs, [len(call.completion_ids) for call in calls]))
        return [replace(example, old_logprobs=tuple(next(pieces) for _ in example.calls)) for example in examples]

    @torch.no_grad()
    def _logprobs(self, calls: list[Call]) -> Tensor:
        return torch.cat(self.policy.logprobs(calls, budget=self.config.machine.tokens_per_pass)).cpu()

    def _mini_batches(self, examples: list[GroupExample], number: int) -> Iterator[list[GroupExample]]:
        rng = random.Random(f"{self.config.seed} {number}")  # noqa: S311  no secret
        count = self.config.rollouts.updates
        for _ in range(self.config.rollouts.passes):
            shuffled = rng.sample(examples, len(examples)) if count > 1 else examples
            # Fewer groups than updates: the same ones again rather than a step without any.
            yield from [shuffled[i::count] or [shuffled[i % len(shuffled)]] for i in range(count)]

    def _measure(self, number: int, groups: Sequence[Group], played: Played) -> dict[str, Any]:
        """The metrics of a batch; held-out tasks are played if they are due."""
        values = self.player.numbers(groups, played.groups)
        for ledger in (self.groups, self.episodes):
            values |= {f"{ledger.item}_{reason}": count for reason, count in ledger.dropped.items()}
        if self.config.held_out.every and number % self.config.held_out.every == 0:
            values |= self.player.held_out()
        return values | {"tasks_drawn": self._drawn}

    def _state(self) -> dict[str, Any]:
        """What a run that resumes needs to know besides the metrics of a batch."""
        return {"ledgers": [ledger.to_json() for ledger in self.ledgers]}

    def _restored(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a batch on file; the tasks drawn and the ledgers are then as they were after it."""
        for ledger in map(Ledger.from_json, numbers.pop("ledgers", [])):
            setattr(self, ledger.item, ledger)
        numbers.pop("stamp", None)
        self._drawn = numbers["tasks_drawn"]
        return numbers

    def _catch_up(self, number: int) -> None:
        """Restores what the batches before this one have used, and shows them to the watch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for earlier in range(number):
            if numbers := BatchFile(self._folder, earlier).numbers():
                self._watch.see(self._restored(numbers))
