"""One optimizer step's gradient: parts into rows, rows through the model, losses back.

Rows hold as many calls as the token budget allows. The calls of one part mostly land in
one row; where a part is larger than that, its rows are computed twice: once without
gradient to find the loss and its slope at every log-probability, then row by row
with it. The gradient is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bough.objectives.base import Loss, Mean, add_metrics
from bough.training.objective import Example, Objective
from bough.training.policy import Answers, Policy
from bough.training.reference import Reference
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call

Row = TreeRow | PlainRow


@dataclass
class Gradient:
    """What came of computing a gradient; the gradient itself is in the parameters."""

    loss: float = 0.0
    metrics: dict[str, Mean] = field(default_factory=dict)
    tokens_computed: int = 0
    tokens_raw: int = 0


class Step:
    """The parts of one optimizer step, laid out in rows."""

    def __init__(
        self, policy: Policy, objective: Objective[Any], parts: Sequence[Example], *, budget: int, share: bool = True
    ) -> None:
        self.policy, self.objective, self.parts = policy, objective, parts
        self.calls: list[Call] = [call for part in parts for call in part.calls]
        self.owner = [p for p, part in enumerate(parts) for _ in part.calls]
        self.rows: Sequence[Row] = policy.rows(self.calls, share=share, budget=budget)

    def run(self, denominator: float, reference: Reference | None, *, backward: bool) -> Gradient:
        """The step's loss and metrics; with `backward`, its gradient is added to the parameters'."""
        done = Gradient(
            tokens_computed=sum(r.tokens.size for r in self.rows), tokens_raw=sum(r.num_raw for r in self.rows)
        )
        metrics: list[dict[str, Mean]] = []
        for rows in self._connected_rows():
            known = [reference.of(row, self.calls) for row in rows] if reference else None
            answers: list[Answers]
            if backward and len(rows) > 1:
                loss, answers = self._twice(rows, known, denominator)
            else:
                with torch.set_grad_enabled(backward):
                    answers = [self.policy(row) for row in rows]
                    loss = self._loss(rows, [answer.logprobs for answer in answers], known, denominator)
                if backward:
                    torch.autograd.backward(loss.value)
            done.loss += loss.value.detach().item()
            metrics += [loss.metrics, *map(_facts, answers)]
        done.metrics = add_metrics(metrics)
        return done

    def _twice(
        self, rows: list[Row], known: list[list[Tensor]] | None, denominator: float
    ) -> tuple[Loss, list[Answers]]:
        # The random numbers of the first pass are drawn again in the second: dropout must not differ.
        devices = [self.policy.device] if self.policy.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            first: list[Answers] = [self.policy(row) for row in rows]
        leaves = [[logprobs.detach().requires_grad_() for logprobs in answers.logprobs] for answers in first]
        loss = self._loss(rows, leaves, known, denominator)
        torch.autograd.backward(loss.value)
        for row, of_row in zip(rows, leaves, strict=True):
            torch.autograd.backward(self.policy(row).logprobs, [leaf.grad for leaf in of_row])
        return loss, first

    def _loss(
        self, rows: list[Row], logprobs: list[list[Tensor]], known: list[list[Tensor]] | None, denominator: float
    ) -> Loss:
        parts, found = self._by_part(rows, logprobs)
        reference = self._by_part(rows, known)[1] if known else None
        return self.objective.loss(parts, found, reference, denominator)

    def _by_part(self, rows: list[Row], values: list[list[Tensor]]) -> tuple[list[Example], list[list[Tensor]]]:
        by_call = {
            c: v for row, of_row in zip(rows, values, strict=True) for c, v in zip(row.calls, of_row, strict=True)
        }
        grouped: dict[int, list[Tensor]] = {}
        for c in sorted(by_call):
            grouped.setdefault(self.owner[c], []).append(by_call[c])
        return [self.parts[p] for p in grouped], list(grouped.values())

    def _connected_rows(self) -> list[list[Row]]:
        """Rows in groups such that no part has calls in two groups."""
        group_of_part: dict[int, int] = {}
        groups: dict[int, list[Row]] = {}
        for number, row in enumerate(self.rows):
            members, parts = [row], {self.owner[c] for c in row.calls}
            for other in sorted({group_of_part[p] for p in parts if p in group_of_part}):
                members = groups.pop(other) + members
            groups[number] = members
            for member in members:
                group_of_part.update((self.owner[c], number) for c in member.calls)
        return list(groups.values())


def _facts(answers: Answers) -> dict[str, Mean]:
    """What any objective's run wants to know of the answered tokens."""
    count = sum(map(len, answers.greedy))
    return {
        "token_accuracy": Mean(torch.cat(answers.greedy).sum(), count),
        "token_entropy": Mean(torch.cat(answers.entropies).sum(), count),
    }
