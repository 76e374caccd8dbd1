"""Training a population: one update of all members, each with its own optimizer, schedule and settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bough.config.training import TrainingConfig
from bough.errors import BoughError, InputError
from bough.ledger import add_metrics
from bough.policy.policy import BUDGET, Answers
from bough.policy.population import Population
from bough.policy.recorded import uses_dropout
from bough.training.method import Example, Loss, Method
from bough.training.step import Gradient, Row, Step, Updater, make_room, next_remedy, slopes_at

log = logging.getLogger(__name__)


@dataclass
class Training:
    """How one member is trained, and how far it is: `step` of `num_steps` updates are done."""

    method: Method[Any]
    config: TrainingConfig
    updater: Updater
    num_steps: int
    step: int = 0


@dataclass(frozen=True)
class Update:
    """What one update did to a member. Where it was `skipped`, its weights and moments are what they were."""

    gradient: Gradient
    learning_rate: float
    grad_norm: float
    skipped: bool = False


@dataclass
class PopulationTrainer:
    """Updates the members of a population together. `budget` is the number of tokens in a row."""

    population: Population
    budget: int = BUDGET
    share: bool = True
    training: dict[str, Training] = field(default_factory=dict)

    def add(self, name: str, method: Method[Any], config: TrainingConfig, num_steps: int) -> None:
        """A member will be trained by `method` for `num_steps` updates, with the optimizer's settings of `config`."""
        if name not in self.population.members:
            raise InputError(f"there is no member named {name}; there are {', '.join(self.population.members)}")
        if hasattr(config, "teacher"):
            raise InputError("members of a population cannot be distilled: their rows have no teacher")
        updater = Updater(self.population.members[name], config)
        self.training[name] = Training(method, config, updater, num_steps)

    def update(self, examples: Mapping[str, Sequence[Example]]) -> dict[str, Update]:
        """One update of each member named here, on its own examples.

        Where a member's loss or gradient is not finite, it alone is left as it is. Its step counts.
        """
        work = {name: Work(self.training[name].method, own) for name, own in examples.items()}
        members = {name: self.training[name] for name in work}
        rates = {name: own.updater.set_learning_rate(own.step, own.num_steps) for name, own in members.items()}
        updates: dict[str, Update] = {}
        for name, gradient in self._within_memory(work, backward=True).items():
            updater = members[name].updater
            norm = float(updater.clip())
            if not _finite(gradient, norm) and len(work) > 1:
                # In attention a weight of 0 times NaN is NaN, so that one member's NaN reaches all members in its
                # rows: only from rows of its own does it show whose it is.
                updater.optimizer.zero_grad()
                gradient = self._within_memory({name: work[name]}, backward=True)[name]
                norm = float(updater.clip())
            updates[name] = Update(gradient, rates[name], norm, skipped=not _finite(gradient, norm))
        for name, update in updates.items():
            own = members[name]
            own.step += 1
            if not update.skipped:
                own.updater.apply()
                continue
            own.updater.optimizer.zero_grad()
            log.warning(
                "Member %s: step %d changed nothing, because its loss is %g and its gradient norm %g.",
                name, own.step, update.gradient.loss, update.grad_norm,
            )  # fmt: skip
        return updates

    def measure(self, examples: Mapping[str, Sequence[Example]]) -> dict[str, Gradient]:
        """The loss and metrics of each member named here, without dropout and without a gradient."""
        work = {name: Work(self.training[name].method, own) for name, own in examples.items()}
        policy = self.population.policy
        training = policy.training
        policy.eval()
        try:
            return self._within_memory(work, backward=False)
        finally:
            policy.train(training)

    def _within_memory(self, work: Mapping[str, Work], *, backward: bool) -> dict[str, Gradient]:
        """The losses of all members, or their gradients; where memory runs out, again as training does it.

        That is with half the token budget, with gradient checkpointing, then with ever smaller budgets as long as a
        row holds several calls. What was changed stays for later updates.
        """
        policy, what, halved = self.population.policy, "the update" if backward else "the evaluation", False
        while True:
            step = PopulationStep(self.population, work, budget=self.budget, share=self.share)
            try:
                return step.run(backward=backward)
            except torch.cuda.OutOfMemoryError as error:
                remedy = next_remedy(policy, self.budget, step.longest_call, halved=halved, backward=backward)
                if remedy is None:
                    even = " even with gradient checkpointing" if policy.row_reader.recomputed else ""
                    raise BoughError(
                        f"out of GPU memory in {what} with token_budget {self.budget}{even}, and a call has "
                        f"{step.longest_call:,} tokens; try a max_length below that or fewer members"
                    ) from error
            # Outside the handler: its exception keeps the tensors of the failed pass in memory.
            if backward:
                for name in work:
                    self.training[name].updater.optimizer.zero_grad()
            self.budget = make_room(policy, remedy, what, self.budget)
            halved |= remedy == "half the budget"


def _finite(gradient: Gradient, norm: float) -> bool:
    return math.isfinite(gradient.loss) and math.isfinite(norm)


# One step's gradients of several members of a population, computed in common rows.
# Each member has its own method, examples and denominator; what a member's gradient is does not depend on whose calls
# are in the same rows. The order of passes is that of `step`: the references, then those rows without gradient that
# parts are spread over, then all rows with it.

ByRow = dict[str, dict[int, list[Tensor]]]  # of each member, by the numbers of its own rows


@dataclass(frozen=True)
class Work:
    """What a member learns from in one step, and by which method."""

    method: Method[Any]
    examples: Sequence[Example]


class PopulationStep:
    """The examples of all members, laid out in rows of at most `budget` tokens.

    Row r has the members in `places[r]`, each with the number of the row among its own.
    """

    def __init__(self, population: Population, work: Mapping[str, Work], *, budget: int, share: bool = True) -> None:
        self.population, self.work = population, work
        parts = {
            name: [part for example in each.examples for part in each.method.parts(example)]
            for name, each in work.items()
        }
        calls = {name: [call for part in own for call in part.calls] for name, own in parts.items()}
        self.places: list[dict[str, int]] = []
        rows: dict[str, list[Row]] = {name: [] for name in work}
        for row in population.rows(calls, share=share, budget=budget):
            self.places.append({name: len(rows[name]) for name in row})
            for name, own in row.items():
                rows[name].append(own)
        self.steps = {
            name: Step(population.policy, each.method, parts[name], budget=budget, rows=rows[name])
            for name, each in work.items()
        }
        self.denominators = {name: sum(map(each.method.amount, each.examples)) for name, each in work.items()}
        self.temperatures = {name: each.method.temperature for name, each in work.items()}
        device = population.policy.device
        self._gpus = [device] if device.type == "cuda" else []
        self._generators: dict[int, list[Tensor]] = {}  # their states before the first passes, by the number of the row

    @property
    def longest_call(self) -> int:
        """The tokens that the longest call of all members is read in."""
        return max((step.longest_call for step in self.steps.values()), default=0)

    def run(self, *, backward: bool) -> dict[str, Gradient]:
        """Each member's loss and metrics; with `backward`, its gradient is added to its parameters'."""
        needing = [name for name, each in self.work.items() if each.method.needs_reference]
        with torch.no_grad():
            found = self._read({name: range(len(self.steps[name].rows)) for name in needing}, reference=True)
        known: ByRow = {name: {r: answers.logprobs for r, answers in of.items()} for name, of in found.items()}
        if backward:
            losses, answers = self._backward(known)
        else:
            with torch.no_grad():
                answers = self._read({name: range(len(step.rows)) for name, step in self.steps.items()})
                said = {name: {r: one.logprobs for r, one in of.items()} for name, of in answers.items()}
                losses = {
                    name: [self._loss(name, rows, said[name], known) for rows in step.connected_rows() if rows]
                    for name, step in self.steps.items()
                }
        return {
            name: Gradient(
                device_loss=float(sum(loss.value.detach() for loss in losses[name])),
                metrics=add_metrics(
                    [
                        *(loss.metrics for loss in losses[name]),
                        *(step.facts(r, found) for r, found in answers[name].items()),
                    ]
                ),
                tokens_computed=sum(row.tokens.size for row in step.rows),
                tokens_raw=sum(row.num_raw for row in step.rows),
            )
            for name, step in self.steps.items()
        }

    def _backward(self, known: ByRow) -> tuple[dict[str, list[Loss]], dict[str, dict[int, Answers]]]:
        losses, slopes = self._first_pass(known)
        said: dict[str, dict[int, Answers]] = {name: {} for name in self.work}
        for number, place in enumerate(self.places):
            with self._as_in_first_pass(number):
                found = self.population.answers(self._row(place), self.temperatures)
            values: list[Tensor] = []
            gradients: list[Tensor] = []
            for name, r in place.items():
                if r in slopes[name]:
                    values += found[name].logprobs
                    gradients += slopes[name][r]
                else:
                    loss = self._loss(name, [r], {r: found[name].logprobs}, known)
                    losses[name].append(loss)
                    values.append(loss.value)
                    gradients.append(torch.ones_like(loss.value))
                said[name][r] = found[name].detach()
            torch.autograd.backward(values, gradients)
        return losses, said

    def _first_pass(self, known: ByRow) -> tuple[dict[str, list[Loss]], ByRow]:
        """The losses of parts that are spread over rows, and the slopes at the log-probabilities of those rows."""
        groups = {name: [rows for rows in step.connected_rows() if len(rows) > 1] for name, step in self.steps.items()}
        policy = self.population.policy
        drops = policy.training and uses_dropout(policy.model)
        with torch.no_grad():
            found = self._read({name: [r for rows in of for r in rows] for name, of in groups.items()}, again=drops)
        losses: dict[str, list[Loss]] = {}
        slopes: ByRow = {}
        for name, own in groups.items():
            leaves = {
                r: [values.detach().requires_grad_() for values in answers.logprobs]
                for r, answers in found.get(name, {}).items()
            }
            losses[name] = [self._loss(name, rows, leaves, known) for rows in own]
            for loss in losses[name]:
                torch.autograd.backward(loss.value)
            slopes[name] = slopes_at(leaves)
        return losses, slopes

    def _read(
        self, wanted: Mapping[str, Iterable[int]], *, reference: bool = False, again: bool = False
    ) -> dict[str, dict[int, Answers]]:
        """What members say to some of their rows; what shares a row is computed together.

        Rows that will be read `again` with the same dropout are read with all their members: each draws its own.
        """
        numbers = {name: set(rows) for name, rows in wanted.items()}
        found: dict[str, dict[int, Answers]] = {name: {} for name in wanted}
        for number, place in enumerate(self.places):
            some = {name: r for name, r in place.items() if r in numbers.get(name, ())}
            if some:
                if again:
                    self._generators[number] = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]
                row = self._row(place if again else some)
                said = self.population.answers(row, self.temperatures, reference=reference)
                for name, r in some.items():
                    found[name][r] = said[name]
        return found

    @contextmanager
    def _as_in_first_pass(self, number: int) -> Iterator[None]:
        """Within it the row draws the random numbers of its first pass again, if it had one with dropout."""
        if number not in self._generators:
            yield
            return
        cpu, *gpus = self._generators[number]
        with torch.random.fork_rng(devices=self._gpus):
            torch.set_rng_state(cpu)
            for state, gpu in zip(gpus, self._gpus, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            yield

    def _row(self, place: Mapping[str, int]) -> dict[str, Row]:
        return {name: self.steps[name].rows[r] for name, r in place.items()}

    def _loss(self, name: str, rows: list[int], logprobs: Mapping[int, list[Tensor]], known: ByRow) -> Loss:
        return self.steps[name].loss(rows, logprobs, known.get(name), self.denominators[name])
