"""One optimizer step's gradient: parts into rows, rows through the model, losses back.

Rows hold as many calls as the token budget allows. The calls of one part mostly land in
one row; where a part is larger than that, its rows are computed twice: once without
gradient to find the loss and its slope at every log-probability, then row by row
with it. The gradient is the same. All rows go through the reference first, then those
that need it through the first pass, then all of them through the last: processes that
share their weights can do that together, whatever rows each of them has. With a teacher,
divergences from it take the place of log-probabilities.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bough.methods.base import Coupled, Example, Loss, Method
from bough.metrics import Mean, add_metrics
from bough.policy.answers import Answers
from bough.policy.policy import Policy
from bough.policy.reference import ReferenceLogprobs
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call

Row = TreeRow | PlainRow
Logprobs = Mapping[int, list[Tensor]] | Sequence[list[Tensor]]  # by the number of the row


@dataclass
class Gradient:
    """What came of computing a gradient; the gradient itself is in the parameters.

    Nothing waits for the GPU before `loss` or a metric's value is read.
    """

    device_loss: Tensor | float = 0.0
    metrics: dict[str, Mean] = field(default_factory=dict)
    tokens_computed: int = 0
    tokens_raw: int = 0

    @property
    def loss(self) -> float:
        return float(self.device_loss)


class Step:
    """The parts of one optimizer step, laid out in rows of at most `budget` tokens, or in the `rows` given.

    `totals` are those of all processes, where a failed attempt at the step has added them up: the others do so once.
    """

    def __init__(
        self,
        policy: Policy,
        method: Method[Any],
        parts: Sequence[Example],
        *,
        budget: int,
        share: bool = True,
        rows: Sequence[Row] | None = None,
        totals: Tensor | None = None,
    ) -> None:
        self.policy, self.method, self.parts, self.totals = policy, method, parts, totals
        self.calls: list[Call] = [call for part in parts for call in part.calls]
        self.owner = [p for p, part in enumerate(parts) for _ in part.calls]
        self.rows: Sequence[Row] = policy.rows(self.calls, share=share, budget=budget) if rows is None else rows

    @property
    def num_tokens(self) -> int:
        """The tokens that are computed, each once; padding is none."""
        return sum(row.tokens.size if isinstance(row, TreeRow) else row.num_raw for row in self.rows)

    @property
    def longest_call(self) -> int:
        """The tokens that the longest call is read in."""
        return max((len(call.prompt_ids) + len(call.completion_ids) for call in self.calls), default=0)

    def run(
        self,
        denominator: float,
        reference: ReferenceLogprobs | None,
        *,
        backward: bool,
        loss_scale: float = 1.0,
        all_tokens: float | None = None,
    ) -> Gradient:
        """The step's loss and metrics; with `backward`, its gradient times `loss_scale` is added to the parameters'.

        `all_tokens` are those of the step in all processes, if this is not the only one.
        """
        self.routing_scale = self.policy.router_coefficient * loss_scale / (all_tokens or self.num_tokens or 1)
        known = reference.of(self.rows, self.calls) if reference else None
        groups = self.connected_rows()
        if backward:
            losses, answers = self._backward(groups, known, denominator, loss_scale)
        else:
            with torch.no_grad():
                answers = self.policy.answers(self.rows)
                logprobs = [found.trained for found in answers]
                losses = [self.loss(rows, logprobs, known, denominator) for rows in groups]
        self.totals = None  # of these weights
        return Gradient(
            device_loss=sum(loss.value.detach() for loss in losses),
            metrics=add_metrics([*(loss.metrics for loss in losses), *map(facts, answers)]),
            tokens_computed=sum(row.tokens.size for row in self.rows),
            tokens_raw=sum(row.num_raw for row in self.rows),
        )

    def _backward(
        self, groups: list[list[int]], known: Logprobs | None, denominator: float, loss_scale: float
    ) -> tuple[list[Loss], list[Answers]]:
        """The losses of all groups of rows and what the policy said, with the gradient added to the parameters'."""
        order = [r for rows in groups for r in rows]
        several = [rows for rows in groups if len(rows) > 1 or self.in_step]
        losses, slopes = self._first_pass(several, known, denominator, loss_scale)
        answers: list[Answers] = []
        for r, row in itertools.zip_longest(order, self.policy.passes([self.rows[r] for r in order])):
            found: Answers = self.policy(row)
            if r is None:  # a process with more rows needs this one along; it weighs nothing
                torch.autograd.backward(torch.cat(found.trained).sum() * 0.0)
                continue
            losses += self._backward_row(r, found, slopes.get(r), known, denominator, loss_scale)
            answers.append(found.detach())
            del found  # the row's graph is gone before the next row is read
        return losses, answers

    def _backward_row(
        self,
        r: int,
        found: Answers,
        slopes: list[Tensor] | None,
        known: Logprobs | None,
        denominator: float,
        loss_scale: float,
    ) -> list[Loss]:
        """Adds the row's gradient to the parameters'; its loss, unless its slopes are known from the first pass."""
        balance = self._balance(found)
        if slopes is not None:
            torch.autograd.backward([*found.trained, *balance], [*slopes, *map(torch.ones_like, balance)])
            return []
        loss = self.loss([r], {r: found.trained}, known, denominator)
        torch.autograd.backward(sum(balance, loss.value * loss_scale))
        return [loss._replace(value=loss.value.detach())]

    def _balance(self, answers: Answers) -> list[Tensor]:
        """The row's share of the load-balancing loss, weighted as it is added to the loss; nothing without experts."""
        found = answers.routing
        return [found.loss * (self.routing_scale * found.num_tokens)] if found and self.routing_scale else []

    def _first_pass(
        self, groups: list[list[int]], known: Logprobs | None, denominator: float, loss_scale: float
    ) -> tuple[list[Loss], dict[int, list[Tensor]]]:
        """The losses of groups of several rows, and of each of their rows the slopes at its log-probabilities."""
        order = [r for rows in groups for r in rows]
        # The random numbers of the first pass are drawn again in the last: dropout must not differ.
        devices = [self.policy.device] if self.policy.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            first = self.policy.answers([self.rows[r] for r in order])
        leaves = {
            r: [values.detach().requires_grad_() for values in found.trained]
            for r, found in zip(order, first, strict=True)
        }
        losses = [self.loss(rows, leaves, known, denominator) for rows in groups]
        for loss in losses:
            if loss.value.requires_grad:  # a process without parts has none
                torch.autograd.backward(loss.value * loss_scale)
        # A call that only measures something (KTO's mismatched ones) has no slope.
        return losses, {
            r: [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in of_row]
            for r, of_row in leaves.items()
        }

    def loss(self, rows: list[int], logprobs: Logprobs, known: Logprobs | None, denominator: float) -> Loss:
        """The loss of all parts of these rows, by number; no part may have calls in other rows."""
        parts, found = self._by_part(rows, logprobs)
        reference = self._by_part(rows, known)[1] if known else None
        if not isinstance(self.method, Coupled):
            return self.method.loss(parts, found, reference, denominator)
        if self.totals is None:
            totals = self.method.totals(parts, found, reference)
            self.totals = self._over_processes(totals) if self.in_step else totals
        return self.method.loss(parts, found, reference, denominator, self.totals)

    def _over_processes(self, totals: Tensor) -> Tensor:
        totals = totals.to(self.policy.device)  # a process without parts has them on the CPU
        torch.distributed.all_reduce(totals)
        return totals

    def _by_part(self, rows: list[int], values: Logprobs) -> tuple[list[Example], list[list[Tensor]]]:
        by_call = {c: v for r in rows for c, v in zip(self.rows[r].calls, values[r], strict=True)}
        grouped: dict[int, list[Tensor]] = {}
        for c in sorted(by_call):
            grouped.setdefault(self.owner[c], []).append(by_call[c])
        return [self.parts[p] for p in grouped], list(grouped.values())

    @property
    def in_step(self) -> bool:
        """Whether the processes add up totals for the loss, so that each must ask for it once."""
        coupled = isinstance(self.method, Coupled)
        return coupled and torch.distributed.is_available() and torch.distributed.is_initialized()

    def connected_rows(self) -> list[list[int]]:
        """The rows by number, in groups such that no part has calls in two groups; groups of several come first.

        All are one group where the parts' losses depend on each other.
        """
        if isinstance(self.method, Coupled):
            return [list(range(len(self.rows)))]
        group_of_part: dict[int, int] = {}
        groups: dict[int, list[int]] = {}
        for number, row in enumerate(self.rows):
            members, parts = [number], {self.owner[c] for c in row.calls}
            for other in sorted({group_of_part[p] for p in parts if p in group_of_part}):
                members = groups.pop(other) + members
            groups[number] = members
            for member in members:
                group_of_part.update((self.owner[c], number) for c in self.rows[member].calls)
        return sorted(groups.values(), key=lambda members: len(members) == 1)


def facts(answers: Answers) -> dict[str, Mean]:
    """Metrics of the answered tokens that every method has, and of the routing of all tokens."""
    count = sum(map(len, answers.greedy))
    facts = {
        "token_accuracy": Mean(torch.cat(answers.greedy).sum(), count),
        "token_entropy": Mean(torch.cat(answers.entropies).sum(), count),
    }
    if routed := answers.routing:
        facts["router_aux_loss"] = Mean(routed.loss.detach() * routed.num_tokens, routed.num_tokens)
        facts["busiest_expert"] = Mean(routed.busiest * routed.num_tokens, routed.num_tokens)
    return facts
