"""GRPO that plays for itself: sample groups with the newest weights, learn from them, sample again.

Each batch of groups is on file before it is learnt from, so a run that was killed goes on
with the very episodes it had. In the run folder's `rollouts` are for each batch

    00007.json          its numbers, and the ledgers so far
    00007.jsonl         its groups, written last: where they are, the numbers are too
    00007.safetensors   with several updates a batch, its log-probabilities before the first

The sampler reads the weights that are trained; nothing is loaded or copied between them.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.calls.template import ChatTemplate
from bough.config.training import GRPOConfig
from bough.disk import sync, write_json
from bough.errors import BoughError, RowError
from bough.ledger import Ledger
from bough.rundir import RunDir
from bough.stages.examples import CallSource
from bough.stages.grpo import Attempts, make_attempts
from bough.stages.player import Player
from bough.stages.watch import Watch
from bough.training.policy import Policy
from bough.training.source import Batch, PausedError
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Call, Group

log = logging.getLogger(__name__)

# That no attempt at any task of a batch differs from another may be bad luck; so often in a row it is not.
DRAWS = 4


class OnlineSource:
    """Plays a batch of groups whenever the last one is used up.

    A batch has `batch_size` tasks (times `gradient_accumulation_steps`) with `group_size`
    attempts each. Groups that teach nothing are dropped: other tasks are tried in their
    place, up to `resample` times as many; where none of them taught anything, so many again.
    """

    def __init__(self, config: GRPOConfig, policy: Policy, template: ChatTemplate, run: RunDir) -> None:
        assert config.max_steps is not None  # its settings see to it
        self.player = Player(config, policy, template)
        self.config = config.model_copy(update={"reward": self.player.reward})
        self.policy, self.num_steps = policy, config.max_steps
        self.groups, self.calls = Ledger("groups"), Ledger("calls")
        self._builder = CallBuilder(template, max_length=config.max_length, stride=config.stride)
        self._watch = Watch(config)
        self._folder = run.rollouts
        self._size = config.batch_size * config.gradient_accumulation_steps
        self._updates = config.updates * config.passes
        self._drawn = 0  # tasks so far
        self._number = -1
        self._batches: list[list[Attempts]] = []
        self._values: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.num_steps

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self._updates == 0

    @property
    def levels(self) -> list[int]:
        return [0]

    def tell(self, success: float) -> None:
        """Nothing here waits for a success rate: the tasks come as they come."""

    def restore(self, levels: Sequence[int]) -> None:
        """What there is to remember is in the folder of rollouts."""

    def batch(self, step: int) -> Batch | None:
        number, update = divmod(step, self._updates)
        if number != self._number:
            self._begin(number, step)
        if not self._batches:
            return None
        return Batch(self._batches[update], number, self._values if update == 0 else {})

    def close(self) -> None:
        self.player.close()

    def _begin(self, number: int, step: int) -> None:
        """Batch `number`: from its file if it was played before a kill, else played now."""
        if self._number < 0:
            self._catch_up(number)
        file = self._folder / f"{number:05}.jsonl"
        training = self.policy.training
        self.policy.eval()
        self.player.renew(step)
        self._number, self._batches = number, []
        if (file.exists() and file.with_suffix(".json").exists()) or self._play(number, file):
            self._values = self._recall(file.with_suffix(".json"))
            groups = [record for record in Reader(file, format="bough") if isinstance(record, Group)]
            examples = [example for group in groups if (example := self._example(group)) is not None]
            if examples and self._updates > 1:
                examples = self._with_before(examples, file.with_suffix(".safetensors"))
            self._batches = list(self._mini_batches(examples, number)) if examples else []
        self.policy.train(training)
        if not self._batches and number == 0:
            raise BoughError(f"the first tasks teach nothing ({self.groups}): are they all too hard or too easy?")
        if self._batches and (alarm := self._watch.alarm()) is not None:
            raise PausedError(f"paused before batch {number}: {alarm}; --resume --no-watch goes on nevertheless")

    def _play(self, number: int, file: Path) -> bool:
        """Plays one batch with the weights as they are and puts it on file, if there is anything to learn from it."""
        played: list[Group] = []
        drawn = (self._draw(played) for _ in range(DRAWS))
        groups = next(filter(None, drawn), [])
        if groups:
            write_json(file.with_suffix(".json"), self._measure(number, groups, played))
            self._write(file, groups)
        return bool(groups)

    def _draw(self, played: list[Group]) -> list[Group]:
        """Groups that teach something. All that were played for them are added to `played`."""
        config, groups = self.config, list[Group]()
        budget = int(self._size * config.resample)
        while budget > 0 and len(groups) < self._size:
            count = min(self._size - len(groups), budget)
            tasks = self.player.tasks(self._drawn, count)
            # A small world's tasks come again, in one batch even: never with the seeds that they had.
            seed = config.seed * 1_000_003 + self._drawn
            self._drawn += count
            budget -= count
            tried = self.player.groups(tasks, seed)
            played += tried
            groups += filter(self._teaches, tried)
        return groups

    def _teaches(self, group: Group) -> bool:
        """Whether an example can be made of the group; enters it in the ledgers."""
        try:
            make_attempts(group, CallSource(self._builder, self.calls), self.config)
        except RowError as error:
            self.groups.drop(error.reason)
            return False
        self.groups.keep()
        return True

    def _example(self, group: Group) -> Attempts | None:
        """The group, which is in the ledgers already, as an example; None where other settings have spoilt it."""
        try:
            return make_attempts(group, CallSource(self._builder, Ledger("calls")), self.config)
        except RowError as error:
            log.warning("%s: %s", group.task.id, error)
            return None

    def _with_before(self, examples: list[Attempts], file: Path) -> list[Attempts]:
        """The examples with the log-probabilities of the weights that this batch is begun with, computed once."""
        calls = [call for example in examples for call in example.calls]
        tokens = torch.tensor([token for call in calls for token in call.completion_ids])
        known = load_file(file) if file.exists() else {}
        # With other settings other calls may be trained than those on file.
        if not known or not torch.equal(known["tokens"], tokens):
            known = {"tokens": tokens, "logprobs": self._logprobs(calls)}
            _save(file, known)
        pieces = iter(torch.split(known["logprobs"], [len(call.completion_ids) for call in calls]))
        return [replace(example, before=tuple(next(pieces) for _ in example.calls)) for example in examples]

    @torch.no_grad()
    def _logprobs(self, calls: list[Call]) -> Tensor:
        return torch.cat(self.policy.logprobs(calls, budget=self.config.token_budget)).cpu()

    def _mini_batches(self, examples: list[Attempts], number: int) -> Iterator[list[Attempts]]:
        chance = random.Random(f"{self.config.seed} {number}")  # noqa: S311  no secret
        count = self.config.updates
        for _ in range(self.config.passes):
            shuffled = chance.sample(examples, len(examples)) if count > 1 else examples
            # Fewer groups than updates: the same ones again rather than a step without any.
            yield from [shuffled[i::count] or [shuffled[i % len(shuffled)]] for i in range(count)]

    def _measure(self, number: int, groups: Sequence[Group], played: Sequence[Group]) -> dict[str, Any]:
        """The numbers of a batch; held-out tasks are played where they are due."""
        values = self.player.numbers(groups, played)
        values |= {f"groups_{reason}": count for reason, count in self.groups.dropped.items()}
        if self.config.eval_every and number % self.config.eval_every == 0:
            values |= self.player.held_out()
        ledgers = [self.groups.to_json(), self.calls.to_json()]
        return values | {"tasks_drawn": self._drawn, "ledgers": ledgers}

    def _recall(self, file: Path) -> dict[str, Any]:
        """A batch's numbers, shown to the watch; the tasks drawn and the ledgers are then as they were behind it."""
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if (ledgers := values.pop("ledgers", None)) is not None:
            self.groups, self.calls = map(Ledger.from_json, ledgers)
        self._drawn = values["tasks_drawn"]
        self._watch.see(values)
        return values

    def _catch_up(self, number: int) -> None:
        """What the batches before this one have used and seen, after a kill."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in (self._folder / f"{earlier:05}.json" for earlier in range(number)):
            if file.exists():
                self._recall(file)

    def _write(self, file: Path, groups: Sequence[Group]) -> None:
        beside = file.with_name(f".{file.name}.{os.getpid()}.jsonl")
        beside.unlink(missing_ok=True)
        with Writer(beside) as writer:
            for group in groups:
                writer.write(group)
        beside.rename(file)
        sync(file.parent)


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    """The whole file or none."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    save_file(tensors, beside)
    sync(beside)
    beside.rename(file)
    sync(file.parent)
