"""GRPO that plays for itself: sample groups with the newest weights, learn from them, sample again.

Each batch of groups is on file before it is learnt from (`rollouts/00007.jsonl` in the
run folder), so a run that was killed goes on with the very episodes it had. The sampler
reads the weights that are trained; nothing is loaded or copied between them.
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

from bough.calls.builder import CallBuilder
from bough.calls.template import ChatTemplate
from bough.config.training import GRPOConfig
from bough.disk import sync, write_json
from bough.errors import BoughError, RowError
from bough.ledger import Ledger
from bough.rewards.score import score
from bough.rundir import RunDir
from bough.stages.examples import CallSource
from bough.stages.grpo import Attempts, make_attempts
from bough.stages.player import Player
from bough.stages.watch import Watch
from bough.training.policy import Policy
from bough.training.source import Batch, PausedError
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Group

log = logging.getLogger(__name__)

# That no attempt at any task of a batch differs from another may be bad luck; so often in a row it is not.
DRAWS = 4


class OnlineSource:
    """Plays a batch of groups whenever the last one is used up.

    A batch has `batch_size` tasks with `group_size` attempts each. Groups whose attempts
    all have the same reward teach nothing: other tasks are tried in their place, up to
    `resample` times as many; where none of them taught anything, so many again.
    """

    def __init__(self, config: GRPOConfig, policy: Policy, template: ChatTemplate, run: RunDir) -> None:
        assert config.max_steps is not None  # its settings see to it
        self.player = Player(config, policy, template)
        self.config = config.model_copy(update={"reward": self.player.reward})
        self.policy, self.num_steps = policy, config.max_steps
        self.groups, self.calls = Ledger("groups"), Ledger("calls")
        builder = CallBuilder(template, max_length=config.max_length, stride=config.stride)
        self._source = CallSource(builder, self.calls)
        self._watch = Watch(config)
        self._folder = run.rollouts
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
        if not file.exists():
            self._write(file, self._play())
        groups = [record for record in Reader(file, format="bough") if isinstance(record, Group)]
        self._drawn = max([self._drawn, *(int(str(group.info["tasks_drawn"])) for group in groups)])
        values = self._measure(number, groups)
        examples = [example for group in groups if (example := self._example(group)) is not None]
        if not examples and number == 0:
            raise BoughError(f"the first tasks teach nothing ({self.groups}): are they all too hard or too easy?")
        if examples and self._updates > 1:
            examples = self._with_before(examples)
        self._batches = list(self._mini_batches(examples, number)) if examples else []
        self._number, self._values = number, values
        self.policy.train(training)
        self._watch.see(values)
        if (alarm := self._watch.alarm()) is not None:
            raise PausedError(f"paused before batch {number}: {alarm}; --resume --no-watch goes on nevertheless")

    def _play(self) -> list[Group]:
        """Groups for one batch, played with the weights as they are."""
        drawn = (self._draw() for _ in range(DRAWS))
        groups = next(filter(None, drawn), [])
        return [group.model_copy(update={"info": {"tasks_drawn": self._drawn}}) for group in groups]

    def _draw(self) -> list[Group]:
        config, groups = self.config, list[Group]()
        budget = int(config.batch_size * config.resample)
        while budget > 0 and len(groups) < config.batch_size:
            count = min(config.batch_size - len(groups), budget)
            tasks = self.player.tasks(self._drawn, count)
            # A small world's tasks come again, in one batch even: never with the seeds that they had.
            seed = config.seed * 1_000_003 + self._drawn
            self._drawn += count
            budget -= count
            for group in self.player.groups(tasks, seed):
                if (why := self._teaches_nothing(group)) is not None:
                    self.groups.drop(why)
                    continue
                self.groups.keep()
                groups.append(group)
        return groups

    def _teaches_nothing(self, group: Group) -> str | None:
        rewards = [score(attempt, self.player.reward) for attempt in group.attempts]
        known = [reward for reward in rewards if reward is not None]
        if len(known) < 2:
            return "too_few_scored"
        return "zero_variance" if max(known) == min(known) else None

    def _example(self, group: Group) -> Attempts | None:
        try:
            return make_attempts(group, self._source, self.config)
        except RowError as error:
            log.warning("%s: %s", group.task.id, error)
            return None

    def _with_before(self, examples: list[Attempts]) -> list[Attempts]:
        """The examples with the log-probabilities of the weights that this batch is begun with."""
        calls = [call for example in examples for call in example.calls]
        with torch.no_grad():
            found = iter(self.policy.logprobs(calls, budget=self.config.token_budget))
        return [replace(example, before=tuple(next(found) for _ in example.calls)) for example in examples]

    def _mini_batches(self, examples: list[Attempts], number: int) -> Iterator[list[Attempts]]:
        chance = random.Random(f"{self.config.seed} {number}")  # noqa: S311  no secret
        count = self.config.updates
        for _ in range(self.config.passes):
            shuffled = chance.sample(examples, len(examples)) if count > 1 else examples
            # Fewer groups than updates: the same ones again rather than a step without any.
            yield from [shuffled[i::count] or [shuffled[i % len(shuffled)]] for i in range(count)]

    def _measure(self, number: int, groups: Sequence[Group]) -> dict[str, Any]:
        """The numbers of a batch, measured once and kept; held-out tasks are played where they are due."""
        file = self._folder / f"{number:05}.json"
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return kept
        values = self.player.numbers(groups)
        values |= {f"groups_{reason}": count for reason, count in self.groups.dropped.items()}
        if self.config.eval_every and number % self.config.eval_every == 0:
            values |= self.player.held_out()
        values["tasks_drawn"] = self._drawn
        write_json(file, values)
        return values

    def _catch_up(self, number: int) -> None:
        """What the batches before this one have used and seen, after a kill."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for earlier in range(number):
            file = self._folder / f"{earlier:05}.json"
            if file.exists():
                values = json.loads(file.read_text(encoding="utf-8"))
                self._watch.see(values)
                self._drawn = values["tasks_drawn"]

    def _write(self, file: Path, groups: Sequence[Group]) -> None:
        beside = file.with_name(f".{file.name}.{os.getpid()}.jsonl")
        beside.unlink(missing_ok=True)
        with Writer(beside) as writer:
            for group in groups:
                writer.write(group)
        beside.rename(file)
        sync(file.parent)
