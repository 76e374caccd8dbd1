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
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bough.config.training import TrainingConfig
from bough.errors import BoughError, first_line
from bough.ledger import Mean, add_metrics
from bough.policy.policy import Answers, Policy
from bough.policy.processes import Processes, whole
from bough.policy.reference import ReferenceLogprobs
from bough.training.checkpoint import Counters, learning_rate, make_optimizer
from bough.training.method import Coupled, Example, Loss, Method
from bough.training.plan import Batch, Source
from bough.trees.build import PlainRow, TreeRow
from bough.types import Call

if TYPE_CHECKING:
    from bough.policy.population import Member

log = logging.getLogger(__name__)

Row = TreeRow | PlainRow
Logprobs = Mapping[int, list[Tensor]] | Sequence[list[Tensor]]  # by the number of the row


@dataclass
class Gradient:
    """Loss, metrics and token counts of a backward pass; the gradient itself is in the parameters.

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
        self.trained = [c < len(part.own) for part in parts for c in range(len(part.calls))]
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
        all_tokens: float | None = None,
    ) -> Gradient:
        """The step's loss and metrics; with `backward`, its gradient is added to the parameters'.

        `all_tokens` are those of the step in all processes, if this is not the only one.
        """
        self.routing_scale = self.policy.router_coefficient / (all_tokens or self.num_tokens or 1)
        known = reference.of(self.rows, self.calls) if reference else None
        groups = self.connected_rows()
        order: Sequence[int] = range(len(self.rows))
        if backward:
            order = [r for rows in groups for r in rows]
            losses, answers = self._backward(groups, known, denominator)
        else:
            with torch.no_grad():
                answers = self.policy.answers(self.rows)
                logprobs = [found.trained for found in answers]
                losses = [self.loss(rows, logprobs, known, denominator) for rows in groups]
        self.totals = None  # of these weights
        return Gradient(
            device_loss=sum(loss.value.detach() for loss in losses),
            metrics=add_metrics([*(loss.metrics for loss in losses), *map(self.facts, order, answers)]),
            tokens_computed=sum(row.tokens.size for row in self.rows),
            tokens_raw=sum(row.num_raw for row in self.rows),
        )

    def _backward(
        self, groups: list[list[int]], known: Logprobs | None, denominator: float
    ) -> tuple[list[Loss], list[Answers]]:
        """The losses of all groups of rows and what the policy said, with the gradient added to the parameters'."""
        order = [r for rows in groups for r in rows]
        several = [rows for rows in groups if len(rows) > 1 or self.in_step]
        losses, slopes = self._first_pass(several, known, denominator)
        answers: list[Answers] = []
        for r, row in itertools.zip_longest(order, self.policy.passes([self.rows[r] for r in order])):
            found: Answers = self.policy(row)
            if r is None:  # a process with more rows needs this one along; it weighs nothing
                torch.autograd.backward(torch.cat(found.trained).sum() * 0.0)
                continue
            losses += self._backward_row(r, found, slopes.get(r), known, denominator)
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
    ) -> list[Loss]:
        """Adds the row's gradient to the parameters'; its loss, unless its slopes are known from the first pass."""
        routing, scale = found.routing, self.routing_scale
        # The row's share of the load-balancing loss, weighted as it is added to the loss; nothing without experts.
        balance = [routing.loss * (scale * routing.num_tokens)] if routing and scale else []
        if slopes is not None:
            torch.autograd.backward([*found.trained, *balance], [*slopes, *map(torch.ones_like, balance)])
            return []
        loss = self.loss([r], {r: found.trained}, known, denominator)
        torch.autograd.backward(sum(balance, loss.value))
        return [loss._replace(value=loss.value.detach())]

    def _first_pass(
        self, groups: list[list[int]], known: Logprobs | None, denominator: float
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
                torch.autograd.backward(loss.value)
        return losses, slopes_at(leaves)

    def loss(self, rows: list[int], logprobs: Logprobs, known: Logprobs | None, denominator: float) -> Loss:
        """The loss of all parts of these rows, by number; no part may have calls in other rows."""
        parts, found = self._by_part(rows, logprobs)
        reference = self._by_part(rows, known)[1] if known else None
        if not isinstance(self.method, Coupled):
            return self.method.loss(parts, found, reference, denominator)
        if self.totals is None:
            totals = self.method.totals(parts, found, reference)
            if self.in_step:
                totals = totals.to(self.policy.device)  # a process without parts has them on the CPU
                torch.distributed.all_reduce(totals)
            self.totals = totals
        return self.method.loss(parts, found, reference, denominator, self.totals)

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

    def facts(self, r: int, answers: Answers) -> dict[str, Mean]:
        """Metrics of row `r` that every method has: of its trained tokens, and of the routing of all tokens."""
        facts, calls = dict[str, Mean](), self.rows[r].calls
        greedy, entropies = (
            [value for c, value in zip(calls, values, strict=True) if self.trained[c]]
            for values in (answers.greedy, answers.entropies)
        )
        if greedy:
            count = sum(map(len, greedy))
            facts["token_accuracy"] = Mean(torch.cat(greedy).sum(), count)
            facts["token_entropy"] = Mean(torch.cat(entropies).sum(), count)
        if routed := answers.routing:
            facts["router_aux_loss"] = Mean(routed.loss.detach() * routed.num_tokens, routed.num_tokens)
            facts["busiest_expert"] = Mean(routed.busiest * routed.num_tokens, routed.num_tokens)
        return facts


def slopes_at(leaves: Mapping[int, list[Tensor]]) -> dict[int, list[Tensor]]:
    """The gradients at log-probabilities, by row; a call that only measures something (KTO's mismatched) has none."""
    return {
        r: [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in of_row]
        for r, of_row in leaves.items()
    }


# The next step's batch is read and packed into rows in a thread, while this step's is computed.
# Packing is a function of the examples and the token budget, so what is computed, and in which order, stays the same.
# Only batches that no earlier step can change are packed ahead.
# Beside a GPU it begins when the step's kernels have all been launched: two threads of Python take turns of
# milliseconds, and kernels that are launched between such turns come too late to keep the GPU busy.


@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch with this process's share of it laid out in rows of at most `budget` tokens."""

    laid_out: Step | None = None
    budget: int = 0

    def within(self, budget: int) -> Step | None:
        """The rows, if they were packed for this budget: memory may have run out since."""
        return self.laid_out if budget == self.budget else None


class Packer:
    """Gives the batches of a source, one after the other; most of them packed already."""

    def __init__(
        self, source: Source, policy: Policy, method: Method[Any], processes: Processes, *, share: bool
    ) -> None:
        self.source, self.policy, self.method, self.processes, self.share = source, policy, method, processes, share
        self.after_launch = policy.device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packing")
        self._next: tuple[int, Future[Batch | None]] | None = None

    def batch(self, step: int, budget: int) -> Batch | None:
        """The batch of step `step`; that of the following one is packed while the step is computed."""
        waiting, self._next = self._next, None
        found = waiting[1].result() if waiting and waiting[0] == step else self.source.batch(step)
        if not self.after_launch:
            self._begin(step + 1, budget)
        return found

    def launched(self, step: int, budget: int) -> None:
        """Nothing is left to do in Python before batch `step` is asked for."""
        if self.after_launch:
            self._begin(step, budget)

    def _begin(self, step: int, budget: int) -> None:
        if self.source.knows(step):
            self._next = step, self._thread.submit(self._packed, step, budget)

    def _packed(self, step: int, budget: int) -> Batch | None:
        batch = self.source.batch(step)
        if batch is None:
            return None
        examples = batch.share(self.processes)
        parts = [part for example in examples for part in self.method.parts(example)]
        laid_out = Step(self.policy, self.method, parts, budget=budget, share=self.share)
        return PackedBatch(batch.examples, batch.epoch, batch.values, batch.own, laid_out, budget)


class BatchGradients:
    """Computes batches of examples, each process its share of them.

    Passes have at most `counters.budget` tokens, which is halved when memory runs out; then activations are computed
    again instead of kept (gradient checkpointing).
    """

    def __init__(
        self,
        policy: Policy,
        method: Method[Any],
        reference: ReferenceLogprobs | None,
        processes: Processes,
        *,
        share: bool,
    ) -> None:
        self.policy, self.method, self.reference, self.processes = policy, method, reference, processes
        self.share = share

    def measure(self, examples: Sequence[Example], counters: Counters) -> tuple[float, dict[str, Mean]]:
        """The loss and the metrics of all processes together, without a gradient.

        Where memory runs out, they are computed again as in `backward`.
        """
        denominator, what = self._denominator(examples), f"the evaluation after step {counters.step}"
        run = partial(Step.run, denominator=denominator, reference=self.reference, backward=False)
        return self.read(self._within_memory(what, run, self._laid_out(examples, counters), counters))

    def backward(
        self,
        examples: Sequence[Example],
        counters: Counters,
        laid_out: Step | None = None,
        *,
        forget: Callable[[], None],
    ) -> Gradient:
        """This process's loss, metrics and tokens, for `read`; the gradient is that of all.

        `laid_out` are the examples in rows of the present budget, where they were packed ahead.
        Where memory runs out, the gradient is computed again: without recordings, with half the token budget,
        with gradient checkpointing, then with ever smaller budgets as long as a row holds several calls. Where
        layers cannot be compiled, without. `forget` clears what an attempt left of it.
        """
        denominator = self._denominator(examples)
        laid_out = laid_out or self._laid_out(examples, counters)
        # Only a loss over all computed tokens asks the other processes for theirs.
        all_tokens = self.processes.sum(laid_out.num_tokens) if self.policy.router_coefficient else None
        run = partial(
            Step.run,
            denominator=denominator,
            reference=self.reference,
            backward=True,
            all_tokens=all_tokens,
        )
        found = self._within_memory(f"step {counters.step + 1}", run, laid_out, counters, forget)
        if not self.policy.sharded:
            self.processes.sum_gradients(self.policy.parameters())
        return found

    def read(self, found: Gradient) -> tuple[float, dict[str, Mean]]:
        """The loss and the metrics of all processes, as numbers: waits for the GPU."""
        return self.processes.sum_metrics(found.loss, found.metrics)

    def _within_memory(
        self,
        what: str,
        run: Callable[[Step], Gradient],
        laid_out: Step,
        counters: Counters,
        forget: Callable[[], None] | None = None,
    ) -> Gradient:
        """What `run` returns, called again as long as there is a way to take less memory.

        `what` names in words what is computed. With a gradient, `forget` clears it.
        """
        remedy: Remedy | None = None
        halved, failure = False, ""
        while True:
            try:
                return run(laid_out)
            except torch.cuda.OutOfMemoryError as error:
                longest, backward = laid_out.longest_call, forget is not None
                remedy = next_remedy(self.policy, counters.budget, longest, halved=halved, backward=backward)
                if remedy is None:
                    raise self._out_of_memory(what, laid_out, counters) from error
            except torch._dynamo.exc.TorchDynamoException as error:  # of a backward pass
                if not self.policy.row_reader.compiled:
                    raise
                remedy, failure = None, first_line(error)
            # Outside the handler: its exception keeps the tensors of the failed pass in memory.
            if forget:
                forget()
            if remedy is None:
                self.policy.row_reader.uncompile(failure)
                self.policy.row_reader.free_memory()
                continue
            counters.budget = make_room(self.policy, remedy, what, counters.budget)
            counters.gradient_checkpointing |= remedy == "recomputing"
            if remedy == "half the budget":
                laid_out, halved = self._rows_of(laid_out.parts, counters, laid_out.totals), True

    def _rows_of(self, parts: Sequence[Example], counters: Counters, totals: Tensor | None = None) -> Step:
        return Step(self.policy, self.method, parts, budget=counters.budget, share=self.share, totals=totals)

    def _out_of_memory(self, what: str, laid_out: Step, counters: Counters) -> BoughError:
        longest, recomputes = laid_out.longest_call, self.policy.row_reader.recomputed
        even = " even with gradient checkpointing" if recomputes else ""
        remedies = [] if recomputes else ["--gradient-checkpointing"]
        if longest >= counters.budget:  # a smaller budget would change nothing
            remedies = [f"a --max-length below {longest}", *remedies, "--qlora or --shard over more GPUs"]
            return BoughError(
                f"out of GPU memory in {what}: a call of {longest:,} tokens does not fit one GPU{even}, and a call "
                f"cannot be spread over several; try {', '.join(remedies)}, then --resume"
            )
        remedies = ["a smaller --token-budget", *remedies, "a smaller --max-length or --qlora"]
        return BoughError(
            f"out of GPU memory in {what} with token_budget {counters.budget}{even}; "
            f"try {', '.join(remedies)}, then --resume"
        )

    def _denominator(self, examples: Sequence[Example]) -> float:
        """That of all processes' examples."""
        return self.processes.sum(sum(map(self.method.amount, examples)))

    def _laid_out(self, examples: Sequence[Example], counters: Counters) -> Step:
        return self._rows_of([part for example in examples for part in self.method.parts(example)], counters)


# From gradients to new weights: the learning rate and clipping.


class Updater:
    """The optimizer of a run, and how the settings say to use it."""

    def __init__(self, policy: Policy | Member, config: TrainingConfig) -> None:
        self.config = config
        self.optimizer = make_optimizer(
            policy.named_parameters(),
            kind=config.optimizer.name,
            learning_rate=config.optimizer.learning_rate,
            weight_decay=config.optimizer.weight_decay,
        )
        self._trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        # Whether the optimizer can look on the GPU if it may change the weights, so that no step waits to know.
        fused = any(group.get("fused") for group in self.optimizer.param_groups)
        self.guarded = fused and not config.machine.shard

    def set_learning_rate(self, step: int, num_steps: int) -> float:
        """Sets and returns the learning rate of a step, counted from 0."""
        config = self.config
        rate = learning_rate(
            step,
            num_steps,
            peak=config.optimizer.learning_rate,
            warmup_ratio=config.optimizer.warmup_ratio,
            decay=config.optimizer.lr_scheduler,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def clip(self) -> Tensor:
        """Clips the gradients; returns the norm that they had, the same number in every process."""
        return whole(torch.nn.utils.clip_grad_norm_(self._trained, self.config.optimizer.max_grad_norm))

    def apply(self, broken: Tensor | None = None) -> None:
        """Changes the weights by their gradients; `broken` tells an optimizer that is `guarded` to change nothing."""
        if broken is not None:
            # What torch's GradScaler tells an optimizer: with 1, its step changes nothing.
            self.optimizer.found_inf = broken.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()


# Give up recordings, halve the token budget, or compute activations again instead of keeping them.
Remedy = Literal["recordings", "half the budget", "recomputing"]


def next_remedy(policy: Policy, budget: int, longest_call: int, *, halved: bool, backward: bool) -> Remedy | None:
    """The next way to take less memory; None if there is none left.

    The step has rows of at most `budget` tokens and a call of `longest_call`. `halved`: for this step the budget
    has been halved already. `backward`: its activations are kept.
    """
    # The other processes wait in the middle of the step, and cannot be joined there.
    if policy.sharded:
        return None
    if policy.row_reader.has_recordings:  # their memory may be enough
        return "recordings"
    # A call is never cut: a row of one call is as long with half the budget.
    several = longest_call < budget
    if several and not halved:
        return "half the budget"
    if backward and policy.row_reader.can_recompute:
        return "recomputing"
    return "half the budget" if several else None


def make_room(policy: Policy, remedy: Remedy, what: str, budget: int) -> int:
    """From now on takes less memory; returns the token budget to try `what` again with."""
    if remedy == "recordings":
        policy.row_reader.give_way()
    elif remedy == "half the budget":
        budget //= 2
        log.warning("Out of GPU memory: trying %s again with token_budget %d.", what, budget)
    else:
        log.warning("Out of GPU memory: trying %s again with gradient checkpointing, which is slower.", what)
        policy.row_reader.recompute()
    policy.row_reader.free_memory()
    return budget
