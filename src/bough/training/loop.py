"""The training loop: the same for every objective, and able to go on after a kill as if there had been none.

plan → step: examples → parts → rows → log-probabilities → loss → gradient → weights
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_json

from bough.config.training import TrainingConfig
from bough.disk import put_in_place
from bough.errors import BoughError
from bough.objectives.base import Mean
from bough.rundir import RunDir
from bough.training import checkpoint
from bough.training.metrics_file import MetricsFile
from bough.training.objective import Example, Objective
from bough.training.optimizer import make_optimizer
from bough.training.plan import Curriculum, Plan
from bough.training.policy import Policy
from bough.training.processes import Processes
from bough.training.reference import Reference
from bough.training.schedule import learning_rate
from bough.training.step import Gradient, Step

log = logging.getLogger(__name__)
Values = dict[str, Any]


@dataclass
class Counters:
    """Where a run is; the part of it that a checkpoint keeps as numbers."""

    step: int = 0
    tokens_trained: int = 0
    tokens_computed: int = 0
    tokens_raw: int = 0
    budget: int = 0
    best_loss: float | None = None
    evaluations_without_gain: int = 0
    levels: list[int] = field(default_factory=lambda: [0])
    success_total: float = 0.0
    success_count: float = 0.0


class Trainer:
    """Trains a policy on examples.

    `save` writes the policy into a folder; `tell` hears of every step's values, for
    progress and trackers.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective[Any],
        examples: Sequence[Example],
        config: TrainingConfig,
        run: RunDir,
        save: Callable[[Path], None],
        *,
        held_out: Sequence[Example] = (),
        processes: Processes | None = None,
        tell: Callable[[Values], None] = lambda _: None,
    ) -> None:
        self.policy, self.objective, self.examples, self.held_out = policy, objective, examples, held_out
        self.config, self.run, self.save, self.tell = config, run, save, tell
        self.processes = processes or Processes()
        self.reference = Reference(policy) if objective.needs_reference else None
        self.plan = self._plan()
        self.optimizer = make_optimizer(
            policy.named_parameters(),
            kind=config.optimizer,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
        )
        self.counters = Counters(budget=config.token_budget)

    def train(self, resume: checkpoint.Checkpoint | None = None) -> Counters:
        """Runs the plan from its beginning or from a checkpoint (whose weights the policy must have)."""
        torch.manual_seed(self.config.seed + self.processes.rank)
        if resume:
            self.counters = Counters(**resume.restore(self.optimizer))
            self.plan = self._plan(self.counters.levels)
        metrics = MetricsFile(self.run.metrics, self.counters.step) if self.processes.first else None
        self.policy.train()
        while self.counters.step < len(self.plan):
            values = self._step()
            if self._due(self.config.logging_steps) and metrics:
                metrics.append(values)
            if self.held_out and self._evaluation_due():
                measured = self._evaluate()
                if metrics:
                    metrics.append(measured)
                if self._out_of_patience():
                    log.warning(
                        "Stopped early: eval loss has not fallen %d times.", self.counters.evaluations_without_gain
                    )
                    break
            if self._due(self.config.save_steps) and self.counters.step < len(self.plan):
                self._save_checkpoint()
        self._save_weights(self.run.final)
        return self.counters

    def _step(self) -> Values:
        begin = time.perf_counter()
        number, planned = self.counters.step, self.plan[self.counters.step]
        examples = [self.examples[i] for i in self.processes.share(planned.examples)]
        rate = self._learning_rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        found = self._gradient(examples)
        self.processes.sum_gradients(self.policy.parameters())
        loss, metrics = self.processes.sum_metrics(found.loss, found.metrics)
        if not math.isfinite(loss):
            raise self._not_finite(number + 1, examples, loss)
        norm = torch.nn.utils.clip_grad_norm_(
            [parameter for parameter in self.policy.parameters() if parameter.requires_grad], self.config.max_grad_norm
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counters.step += 1
        self.counters.tokens_trained += sum(example.num_trained for example in examples)
        self.counters.tokens_computed += found.tokens_computed
        self.counters.tokens_raw += found.tokens_raw
        self._count_success(metrics)
        seconds = time.perf_counter() - begin
        values: Values = {
            "step": self.counters.step,
            "epoch": planned.epoch,
            "loss": loss,
            **{name: mean.value for name, mean in metrics.items()},
            "learning_rate": rate,
            "grad_norm": float(norm),
            "shared": found.tokens_raw / max(1, found.tokens_computed),
            "tokens_computed": self.counters.tokens_computed,
            "tokens_per_s": found.tokens_computed / seconds,
            "raw_tokens_per_s": found.tokens_raw / seconds,
            "seconds": seconds,
        }
        self.tell(values)
        return values

    def _gradient(self, examples: Sequence[Example]) -> Gradient:
        """The gradient of a step; where memory runs out, once more in half as large pieces."""
        denominator = self.processes.sum(sum(map(self.objective.amount, examples)))
        parts = [part for example in examples for part in self.objective.parts(example)]
        try:
            return self._computed(parts, denominator, backward=True)
        except torch.cuda.OutOfMemoryError:
            self.counters.budget //= 2
            log.warning(
                "Out of GPU memory: trying step %d again with token_budget %d.",
                self.counters.step + 1,
                self.counters.budget,
            )
        self.optimizer.zero_grad()
        torch.cuda.empty_cache()
        try:
            return self._computed(parts, denominator, backward=True)
        except torch.cuda.OutOfMemoryError as error:
            raise BoughError(
                f"out of GPU memory in step {self.counters.step + 1} even with token_budget {self.counters.budget}; "
                "try --gradient-checkpointing, a smaller --max-length or --qlora, then --resume"
            ) from error

    def _computed(self, parts: Sequence[Example], denominator: float, *, backward: bool) -> Gradient:
        step = Step(self.policy, self.objective, parts, budget=self.counters.budget, share=self.config.share)
        return step.run(denominator, self.reference, backward=backward)

    def _evaluate(self) -> Values:
        """The objective on the held-out examples."""
        self.policy.eval()
        examples = self.processes.share(list(self.held_out))
        denominator = self.processes.sum(sum(map(self.objective.amount, examples)))
        parts = [part for example in examples for part in self.objective.parts(example)]
        found = self._computed(parts, denominator, backward=False)
        self.policy.train()
        loss, metrics = self.processes.sum_metrics(found.loss, found.metrics)
        if self.counters.best_loss is None or loss < self.counters.best_loss:
            self.counters.best_loss, self.counters.evaluations_without_gain = loss, 0
            if self.config.save_best_model:
                self._save_weights(self.run.best)
        else:
            self.counters.evaluations_without_gain += 1
        values: Values = {"step": self.counters.step, "eval_loss": loss}
        values |= {f"eval_{name}": mean.value for name, mean in metrics.items()}
        self.tell(values)
        return values

    def _plan(self, levels: Sequence[int] = (0,)) -> Plan:
        config = self.config
        curriculum = Curriculum(
            config.curriculum_start_ratio, config.curriculum_warmup_epochs, config.curriculum_success
        )  # fmt: skip
        return Plan(
            [example.cluster for example in self.examples],
            [example.difficulty for example in self.examples],
            batch_size=config.batch_size * config.gradient_accumulation_steps,
            num_epochs=config.num_epochs,
            max_steps=config.max_steps,
            curriculum=curriculum if config.curriculum else None,
            seed=config.seed,
            levels=levels,
        )

    def _count_success(self, metrics: dict[str, Mean]) -> None:
        """Remembers how well the epoch is going, and tells the plan when it ends."""
        success = metrics.get("accuracy", metrics["token_accuracy"])
        self.counters.success_total += float(success.total)
        self.counters.success_count += float(success.count)
        if self.config.curriculum_success is not None and self.plan.ends_epoch(self.counters.step - 1):
            self.plan.tell(self.counters.success_total / max(1.0, self.counters.success_count))
            self.counters.success_total = self.counters.success_count = 0.0
        self.counters.levels = list(self.plan.levels)

    def _learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(
            step, len(self.plan), peak=config.learning_rate, warmup_ratio=config.warmup_ratio, decay=config.lr_scheduler
        )

    def _due(self, every: int) -> bool:
        return self.counters.step % every == 0 or self.counters.step == len(self.plan)

    def _evaluation_due(self) -> bool:
        if self.config.eval_steps:
            return self._due(self.config.eval_steps)
        return self.plan.ends_epoch(self.counters.step - 1)

    def _out_of_patience(self) -> bool:
        patience = self.config.early_stopping_patience
        return patience is not None and self.counters.evaluations_without_gain >= patience

    def _save_checkpoint(self) -> None:
        if self.processes.first:
            checkpoint.save(
                self.run.checkpoints, self.counters.step, self.save, self.optimizer, asdict(self.counters),
                keep=self.config.save_total_limit,
            )  # fmt: skip
        self.processes.wait()

    def _save_weights(self, path: Path) -> None:
        if self.processes.first:
            draft = path.with_name(f".{path.name}")
            self.save(draft)
            put_in_place(draft, path)
        self.processes.wait()

    def _not_finite(self, step: int, examples: Sequence[Example], loss: float) -> BoughError:
        path = self.run.bad_batch(step)
        path.write_bytes(
            b"".join(to_json(asdict(example), fallback=lambda v: v.model_dump()) + b"\n" for example in examples)
        )
        places = ", ".join(example.place for example in examples[:3])
        return BoughError(
            f"the loss of step {step} is {loss}; nothing was changed by it. Its batch is in {path} (from {places}…); "
            "a lower --learning-rate or float32 often helps, then --resume"
        )
