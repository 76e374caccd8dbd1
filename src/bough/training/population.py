"""Training a population: one update of all members, each with its own optimizer, schedule and settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bough.config.training import TrainingConfig
from bough.errors import BoughError, InputError
from bough.methods.base import Example, Method
from bough.policy.policy import BUDGET
from bough.policy.population import Population
from bough.training.population_step import PopulationStep, Work
from bough.training.remedy import next_remedy
from bough.training.step import Gradient
from bough.training.update import Updater

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
        if config.machine.fp16:
            raise InputError("members of a population have no loss scale of their own; use bf16 instead of fp16")
        if hasattr(config, "teacher"):
            raise InputError("members of a population cannot be distilled: their rows have no teacher")
        if method.temperature is None:
            raise InputError("members of a population are trained at one temperature each; leave out temperatures")
        updater = Updater(self.population.members[name], config)
        self.training[name] = Training(method, config, updater, num_steps)

    def update(self, examples: Mapping[str, Sequence[Example]]) -> dict[str, Update]:
        """One update of each member named here, on its own examples.

        Where a member's loss or gradient is not finite, it alone is left as it is. Its step counts.
        """
        work = {name: Work(self.training[name].method, own) for name, own in examples.items()}
        rates = {name: self._set_learning_rate(name) for name in work}
        gradients = self._within_memory(work, backward=True)
        updates: dict[str, Update] = {}
        for name, gradient in gradients.items():
            norm = float(self.training[name].updater.clip())
            if not _finite(gradient, norm) and len(work) > 1:
                gradient, norm = self._alone(name, work[name])
            updates[name] = Update(gradient, rates[name], norm, skipped=not _finite(gradient, norm))
        for name, update in updates.items():
            self._apply(name, update)
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

    def _laid_out(self, work: Mapping[str, Work]) -> PopulationStep:
        return PopulationStep(self.population, work, budget=self.budget, share=self.share)

    def _within_memory(self, work: Mapping[str, Work], *, backward: bool) -> dict[str, Gradient]:
        """The losses of all members, or their gradients; where memory runs out, again as training does it.

        That is with half the token budget, with gradient checkpointing, then with ever smaller budgets as long as a
        row holds several calls. What was changed stays for later updates.
        """
        policy, what, halved = self.population.policy, "update" if backward else "evaluation", False
        while True:
            step = self._laid_out(work)
            try:
                return step.run(backward=backward)
            except torch.cuda.OutOfMemoryError as error:
                remedy = next_remedy(policy, self.budget, step.longest_call, halved=halved, backward=backward)
                if remedy is None:
                    raise self._out_of_memory(what, step.longest_call) from error
            # Outside the handler: its exception keeps the tensors of the failed pass in memory.
            if backward:
                for name in work:
                    self.training[name].updater.optimizer.zero_grad()
            if remedy == "half the budget":
                self.budget, halved = self.budget // 2, True
                log.warning("Out of GPU memory: trying the %s again with token_budget %d.", what, self.budget)
            else:
                log.warning("Out of GPU memory: trying the update again with gradient checkpointing, which is slower.")
                policy.layers.recompute()
            torch.cuda.empty_cache()

    def _out_of_memory(self, what: str, longest_call: int) -> BoughError:
        recomputes = self.population.policy.layers.recomputed
        even = " even with gradient checkpointing" if recomputes else ""
        remedies = ["fewer members"] if recomputes else ["gradient checkpointing", "fewer members"]
        return BoughError(
            f"out of GPU memory in the {what} with token_budget {self.budget}{even}, and a call has "
            f"{longest_call:,} tokens; try a max_length below that, or {' or '.join(remedies)}"
        )

    def _set_learning_rate(self, name: str) -> float:
        own = self.training[name]
        return own.updater.set_learning_rate(own.step, own.num_steps)

    def _alone(self, name: str, work: Work) -> tuple[Gradient, float]:
        """The member's gradient from rows of its own.

        In attention a weight of 0 times NaN is NaN, so that one member's NaN reaches all members in
        its rows: only alone does it show whose it is.
        """
        updater = self.training[name].updater
        updater.optimizer.zero_grad()
        return self._within_memory({name: work}, backward=True)[name], float(updater.clip())

    def _apply(self, name: str, update: Update) -> None:
        own = self.training[name]
        own.step += 1
        if not update.skipped:
            own.updater.apply()
            return
        own.updater.optimizer.zero_grad()
        log.warning(
            "Member %s: step %d changed nothing, because its loss is %g and its gradient norm %g.",
            name, own.step, update.gradient.loss, update.grad_norm,
        )  # fmt: skip


def _finite(gradient: Gradient, norm: float) -> bool:
    return math.isfinite(gradient.loss) and math.isfinite(norm)
