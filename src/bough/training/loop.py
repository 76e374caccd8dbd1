"""The training loop: the same for every method; a run that was killed resumes as if it had not been.

source → step: examples → parts → rows → log-probabilities → loss → gradient → weights
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bough.config.run_folder import MetricsFile, RunDir
from bough.config.training import TrainingConfig
from bough.errors import BoughError
from bough.event_loop import Interrupts, StoppedError, StopRequestedError
from bough.files import drafting, put_in_place
from bough.ledger import Mean, plural
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reference import Reference, ReferenceLogprobs
from bough.training import checkpoint
from bough.training.checkpoint import CheckpointWriter, Counters, OptimizerState, not_finite, snapshot
from bough.training.method import Example, Method
from bough.training.plan import Batch, PausedError, Source
from bough.training.step import BatchGradients, Gradient, PackedBatch, Packer, Updater

log = logging.getLogger(__name__)
Values = dict[str, Any]
ADVICE = "A lower --learning-rate or float32 often helps, then --resume"


class Trainer:
    """Trains a policy on the batches of a source.

    `save` writes the policy's weights into a folder; `report` is called with every step's values,
    for progress and trackers.
    """

    def __init__(
        self,
        policy: Policy,
        method: Method[Any],
        source: Source,
        config: TrainingConfig,
        run: RunDir,
        save: Callable[[Path, dict[str, Tensor]], None],
        *,
        held_out: Sequence[Example] = (),
        processes: Processes | None = None,
        report: Callable[[Values], None] = lambda _: None,
        interrupts: Interrupts | None = None,
        reference: ReferenceLogprobs | None = None,
    ) -> None:
        self.policy, self.method, self.source, self.held_out = policy, method, source, held_out
        self.config, self.run, self.save, self.report = config, run, save, report
        self.processes = processes or Processes()
        self.reference = Reference(policy) if method.needs_reference else None
        known = reference or self.reference
        self.gradients = BatchGradients(policy, method, known, self.processes, share=config.machine.share)
        if config.machine.cuda_graphs:
            policy.row_reader.record()
        self.updater = Updater(policy, config)
        self.optimizer = self.updater.optimizer
        self.writer = CheckpointWriter()
        self.interrupts = interrupts or Interrupts()
        self._stopping = False  # whether all processes know that the run is to stop
        self._saved_step = 0  # the step of the newest checkpoint
        self.packer = Packer(source, policy, method, self.processes, share=config.machine.share)
        self.counters = Counters(token_budget=config.machine.tokens_per_pass, budget=config.machine.tokens_per_pass)

    def train(self, resume: checkpoint.Checkpoint | None = None, *, same_held_out: bool = True) -> Counters:
        """Runs the plan from its beginning or from a checkpoint (whose weights the policy must have).

        Without `same_held_out` the best eval loss so far was measured on other data and is reset.
        An interrupt saves a checkpoint and raises StoppedError (`bough.event_loop`).
        """
        with self.interrupts, self.writer:
            return self._train(resume, same_held_out=same_held_out)

    def _train(self, resume: checkpoint.Checkpoint | None, *, same_held_out: bool) -> Counters:
        torch.manual_seed(self.config.seed + self.processes.rank)
        if resume:
            self._restore(resume)
        if not same_held_out:
            self.counters.best_loss, self.counters.evaluations_without_gain = None, 0
        metrics = MetricsFile(self.run.metrics, self.counters.step) if self.processes.first else None
        self.policy.train()
        while self.counters.step < len(self.source) and not self._out_of_patience():
            if self._stopping:
                raise self._stopped()
            batch = self._next_batch()
            if batch is None:
                log.warning("Stopped after step %d: there is nothing left to learn from.", self.counters.step)
                self._save_checkpoint()
                break
            values = self._step(batch)
            self.writer.check()
            if metrics and (batch.values or self._due(self.config.tracking.logging_steps)):
                metrics.append(values)
            if self.held_out and self._evaluation_due():
                measured = self._evaluate()
                if metrics:
                    metrics.append(measured)
            if self._due(self.config.checkpoints.save_steps) or self._out_of_patience():
                self._save_checkpoint()
        if self._out_of_patience():
            log.warning(
                "Stopped early after step %d: eval loss has not fallen %d times in a row.",
                self.counters.step,
                self.counters.evaluations_without_gain,
            )
        self._save_weights(self.run.final)
        return self.counters

    def _restore(self, resume: checkpoint.Checkpoint) -> None:
        self.counters = resume.restore(self.optimizer, rank=self.processes.rank, count=self.processes.count)
        self._saved_step = self.counters.step
        if self.counters.token_budget != self.config.machine.tokens_per_pass:
            # What memory forced stays until the settings ask for another budget.
            self.counters.token_budget = self.counters.budget = self.config.machine.tokens_per_pass
            self.counters.gradient_checkpointing = False
        if self.counters.gradient_checkpointing:
            self.policy.row_reader.recompute()
        self.source.restore(self.counters.levels)
        if self.counters.step >= len(self.source):
            log.warning(
                "%s done already; a larger --max-steps continues training.",
                plural(self.counters.step, "step is", "steps are"),
            )

    def _next_batch(self) -> Batch | None:
        """What the next step learns from. Where the source pauses or stops the run, a checkpoint is saved first."""
        try:
            return self.packer.batch(self.counters.step, self.counters.budget)
        except PausedError:
            self._save_checkpoint()
            raise
        except StopRequestedError:
            raise self._stopped() from None

    def _stopped(self) -> StoppedError:
        """What an interrupted run ends with; all that it has learnt is on disk. All processes must call it together."""
        step = self.counters.step
        if not step:
            return StoppedError("Stopped before the first step.")
        if self._saved_step != step:
            self._save_checkpoint()
        self.writer.wait()
        return StoppedError(f"Stopped after step {step}; its checkpoint is in {self.run.checkpoints}.")

    def _step(self, batch: Batch) -> Values:
        begin = time.perf_counter()
        number = self.counters.step
        examples = batch.share(self.processes)
        rate = self.updater.set_learning_rate(number, len(self.source))
        laid_out = batch.within(self.counters.budget) if isinstance(batch, PackedBatch) else None
        found = self.gradients.backward(examples, self.counters, laid_out, forget=self.optimizer.zero_grad)
        loss, metrics, norm = self._update(batch, found)
        trained = sum(example.num_trained for example in examples)
        trained, computed, raw, stops = self.processes.sum_counts(
            trained, found.tokens_computed, found.tokens_raw, self.interrupts.requested
        )
        self._stopping = stops > 0
        self.counters.step += 1
        self.counters.tokens_trained += trained
        self.counters.tokens_computed += computed
        self.counters.tokens_raw += raw
        self.counters.levels = list(self.source.levels)
        seconds = time.perf_counter() - begin
        values: Values = {
            "step": self.counters.step,
            "epoch": batch.epoch,
            **batch.values,
            "loss": loss,
            **{name: mean.value for name, mean in metrics.items()},
            "learning_rate": rate,
            "grad_norm": norm,
            "shared": raw / max(1, computed),
            "tokens_computed": self.counters.tokens_computed,
            "tokens_per_s": computed / seconds,
            "raw_tokens_per_s": raw / seconds,
            "seconds": seconds,
        }
        self.report(values)
        return values

    def _update(self, batch: Batch, found: Gradient) -> tuple[float, dict[str, Mean], float]:
        """Changes the weights by their gradients; the loss, the metrics, and the gradients' norm before clipping.

        All work for a GPU is given to it before anything waits for it.
        """
        step = self.counters.step + 1
        norm, guarded = self.updater.clip(), self.updater.guarded
        if guarded:
            own_loss = torch.as_tensor(found.device_loss, device=norm.device)
            # Each process has the loss of its own examples; one that is not finite keeps all of them from the update.
            self.updater.apply(self.processes.any(~(own_loss.isfinite() & norm.isfinite())))
        self.packer.launched(step, self.counters.budget)
        loss, metrics = self.gradients.read(found)
        if not math.isfinite(loss):
            raise self._not_finite(batch, f"the loss of step {step} is {loss}")
        # All processes have the same norm, so that all of them continue or none does.
        if not math.isfinite(norm):
            what = f"the loss of step {step} is finite, but its gradient norm is {float(norm)}"
            raise self._not_finite(batch, what)
        if not guarded:
            self.updater.apply()
        return loss, metrics, float(norm)

    def _evaluate(self) -> Values:
        """The loss on the held-out examples."""
        self.policy.eval()
        loss, metrics = self.gradients.measure(self.processes.share(list(self.held_out)), self.counters)
        self.policy.train()
        if self.counters.count_evaluation(loss) and self.config.checkpoints.save_best_model:
            self._save_weights(self.run.best)
        values: Values = {"step": self.counters.step, "eval_loss": loss}
        values |= {f"eval_{name}": mean.value for name, mean in metrics.items()}
        self.report(values)
        return values

    def _due(self, every: int) -> bool:
        return self.counters.step % every == 0 or self.counters.step == len(self.source)

    def _evaluation_due(self) -> bool:
        if self.config.checkpoints.eval_steps:
            return self._due(self.config.checkpoints.eval_steps)
        return self.source.ends_epoch(self.counters.step - 1) or self.counters.step == len(self.source)

    def _out_of_patience(self) -> bool:
        patience = self.config.checkpoints.early_stopping_patience
        return patience is not None and self.counters.evaluations_without_gain >= patience

    def _save_checkpoint(self) -> None:
        weights, optimizer = self.policy.weights(), OptimizerState.of(self.optimizer)
        self._check_finite(not_finite(weights) or not_finite(optimizer.tensors))
        randomness = self.processes.gather([checkpoint.random_state()])
        if self.processes.first:
            self.writer.wait()  # no two copies of all weights
            counters, keep = deepcopy(self.counters), self.config.checkpoints.save_total_limit
            copy = snapshot(weights)
            state = OptimizerState(snapshot(optimizer.tensors), optimizer.numbers)
            self.writer.begin(
                lambda: checkpoint.save(
                    self.run.checkpoints, lambda folder: self.save(folder, copy), state, randomness, counters, keep=keep
                )
            )
        self.processes.wait()
        self._saved_step = self.counters.step

    def _save_weights(self, path: Path) -> None:
        weights = self.policy.weights()
        self._check_finite(not_finite(weights))
        self.writer.wait()  # a model is saved by one thread at a time
        if self.processes.first:
            draft = path.with_name(f".{path.name}")
            with drafting(draft, path):
                self.save(draft, weights)
                put_in_place(draft, path)
        self.processes.wait()

    def _check_finite(self, broken: str | None) -> None:
        """Weights that are not finite are never saved: a run could not resume from them, and no stage start."""
        names = [name for name in self.processes.gather([broken]) if name is not None]
        if names:
            raise BoughError(
                f"after step {self.counters.step} the weights or the optimizer's state are not finite ({names[0]}), "
                f"so they are not saved; checkpoints before that are good. {ADVICE}"
            )

    def _not_finite(self, batch: Batch, what: str) -> BoughError:
        """The error of a step that must not change the weights; its batch is written to a file."""
        self.optimizer.zero_grad()
        path = self.run.bad_batch(self.counters.step + 1)
        where = batch.dump(path) if self.processes.first else str(path)
        self.processes.wait()
        return BoughError(f"{what}; the step changed nothing. Its batch is in {where}. {ADVICE}")
