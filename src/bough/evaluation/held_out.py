"""A model on held-out data: how likely it finds the replies, and which side of a pair it prefers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bough.chat.template import CallBuilder
from bough.data.base import Sample
from bough.data.reader import Reader
from bough.data.trl import LABEL
from bough.errors import InputError
from bough.evaluation.contest import EvalConfig
from bough.ledger import Ledger
from bough.policy.adapters import add_reference
from bough.policy.load import load_call_builder
from bough.policy.policy import Answers, Policy
from bough.terminal import console
from bough.training.run import start_of
from bough.types import Call, Group, Message, Pair, Trajectory, Turn

log = logging.getLogger(__name__)
# Records per batch: enough to share prefixes, few enough to see progress.
TOGETHER = 16


@dataclass
class HeldOut:
    """Measurements over many records; `to_json` divides at the end.

    With `over_reference` the sides of a pair are also compared by what an adapter gained on its
    reference. That is what its training started from: where it was an adapter, the policy must have it.
    """

    policy: Policy
    builder: CallBuilder
    budget: int
    over_reference: bool = True
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))
    tokens: int = 0
    logprob: float = 0.0
    greedy: int = 0
    pairs: int = 0
    wins: int = 0
    wins_per_token: int = 0
    wins_over_reference: int = 0
    pairs_incomplete: int = 0
    labelled_bad: int = 0

    def add(self, samples: Iterable[Sample]) -> None:
        """Measures some records together; what they share is computed once."""
        units: list[list[Call]] = []
        pairs: list[tuple[int, int]] = []
        rejected = set[int]()
        for sample in samples:
            if isinstance(sample, Pair):
                sides = [self._calls(sample.start, side, sample.tools) for side in (sample.chosen, sample.rejected)]
                if all(calls and whole for calls, whole in sides):
                    pairs.append((len(units), len(units) + 1))
                else:  # half a side would be compared with a whole one
                    self.pairs_incomplete += 1
                rejected.add(len(units) + 1)
                units += [calls for calls, _ in sides]
            else:
                if isinstance(sample, Trajectory) and sample.rewards.get(LABEL) == 0:
                    self.labelled_bad += 1
                    rejected.add(len(units))
                for attempt in sample.attempts if isinstance(sample, Group) else [sample]:
                    units.append(self._calls(attempt.start, attempt.turns, attempt.tools)[0])
        calls = [call for unit in units for call in unit]
        answers, reference = self._answers(calls), None
        if pairs and self.over_reference and self.policy.has_adapter:
            with self.policy.reference():
                reference = self._answers(calls)
        scores, at = [], 0
        for number, unit in enumerate(units):
            found = answers[at : at + len(unit)]
            before = reference[at : at + len(unit)] if reference else []
            at += len(unit)
            # A unit's log-probability: summed, per token, and above the reference's.
            total = sum(float(logprobs.sum()) for logprobs, _ in found)
            length = sum(len(logprobs) for logprobs, _ in found)
            gained = total - (sum(float(logprobs.sum()) for logprobs, _ in before) if before else 0.0)
            scores.append((total, total / max(1, length), gained))
            if number not in rejected:  # the rejected side, or a reply labelled as bad, should not be likely
                for logprobs, greedy in found:
                    self.tokens += len(logprobs)
                    self.logprob += float(logprobs.sum())
                    self.greedy += int(greedy.sum())
        for chosen, worse in pairs:
            self.pairs += 1
            self.wins += scores[chosen][0] > scores[worse][0]
            self.wins_per_token += scores[chosen][1] > scores[worse][1]
            self.wins_over_reference += scores[chosen][2] > scores[worse][2]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"calls": self.calls.to_json(), "tokens": self.tokens}
        if self.tokens:
            found["nll"] = -self.logprob / self.tokens
            found["perplexity"] = math.exp(min(found["nll"], 700))
            found["token_accuracy"] = self.greedy / self.tokens
        if self.labelled_bad:
            found["labelled_bad"] = self.labelled_bad
        if self.pairs_incomplete:
            found["pairs_incomplete"] = self.pairs_incomplete
        if self.pairs:
            found["pairs"] = self.pairs
            found["preference_accuracy"] = self.wins / self.pairs
            found["preference_accuracy_per_token"] = self.wins_per_token / self.pairs
            if self.over_reference and self.policy.has_adapter:
                found["preference_accuracy_over_reference"] = self.wins_over_reference / self.pairs
        return found

    def _calls(self, start: list[Message], turns: list[Turn], tools: list[dict[str, Any]]) -> tuple[list[Call], bool]:
        """The calls of the trained turns, and whether these are all of them."""
        found, whole = [], True
        for built in self.builder.build(start, turns, tools):
            if built.call is None:
                self.calls.drop(built.reason or "")
                whole = False
            else:
                self.calls.keep()
                found.append(built.call)
        return found, whole

    @torch.no_grad()
    def _answers(self, calls: Sequence[Call]) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(calls)
        for row in self.policy.rows(calls, budget=self.budget):
            answers: Answers = self.policy(row)
            for c, logprobs, greedy in zip(row.calls, answers.logprobs, answers.greedy, strict=True):
                found[c] = logprobs, greedy
        return found


def measure(config: EvalConfig) -> dict[str, Any]:
    """The model of the settings on their held-out file: every number that `HeldOut` has, and rows read and skipped."""
    assert config.held_out.file is not None
    [model] = config.agent.model
    builder = load_call_builder(
        model, config.agent.chat_template, max_length=config.held_out.max_length, stride=config.held_out.stride
    )
    reader = Reader(config.held_out.file, format=config.held_out.format, on_error="skip")
    samples = iter(reader)
    batch = list(islice(samples, TOGETHER))
    if not batch:
        raise InputError(f"{config.held_out.file}: no row can be read; `bough data validate` lists the problems")
    policy = Policy.load(model)
    no_reference = None if policy.has_adapter else "a whole model contains no reference"
    if no_reference is None:
        try:
            if start := start_of(Path(model)):
                add_reference(policy.model, start)
        except InputError as error:
            no_reference = str(error)
    measured = HeldOut(policy.eval(), builder, config.held_out.token_budget, over_reference=no_reference is None)
    with console.progress(f"measuring {config.held_out.file.name}") as bar:
        while batch:
            measured.add(batch)
            bar.advance(bar.task_ids[0], len(batch))
            batch = list(islice(samples, TOGETHER))
    if measured.pairs and no_reference:
        log.warning("preference_accuracy_over_reference is not computed: %s.", no_reference)
    return measured.to_json() | {"rows": reader.rows, "rows_skipped": dict(reader.skipped)}
