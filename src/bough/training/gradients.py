"""Losses and gradients of whole batches: over all processes, within the memory of the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from bough.errors import BoughError
from bough.methods.base import Example, Method
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reference import ReferenceLogprobs
from bough.training.counters import Counters
from bough.training.step import Gradient, Step

log = logging.getLogger(__name__)


class BatchGradients:
    """Computes batches of examples, each process its share of them.

    Passes have at most `counters.budget` tokens, which is halved when memory runs out.
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

    def measure(self, examples: Sequence[Example], counters: Counters) -> Gradient:
        """The loss and the metrics of all processes together, without a gradient."""
        parts, denominator = self._parts(examples)
        return self._summed(self._laid_out(parts, counters).run(denominator, self.reference, backward=False))

    def backward(
        self,
        examples: Sequence[Example],
        counters: Counters,
        laid_out: Step | None = None,
        *,
        loss_scale: float,
        forget: Callable[[], None],
    ) -> Gradient:
        """The same with the gradient, times `loss_scale`, added to the parameters'. Tokens are this process's own.

        `laid_out` are the examples in rows of the present budget, where they were packed ahead.
        Where memory runs out, the gradient is computed again with half the token budget;
        `forget` clears what the first attempt left of it.
        """
        parts, denominator = self._parts(examples)
        laid_out = laid_out or self._laid_out(parts, counters)
        # Only a loss over all computed tokens asks the other processes for theirs.
        all_tokens = self.processes.sum(laid_out.num_tokens) if self.policy.router_coefficient else None
        found = self._within_memory(laid_out, denominator, counters, loss_scale, all_tokens, forget)
        if not self.policy.sharded:
            self.processes.sum_gradients(self.policy.parameters())
        return self._summed(found)

    def _within_memory(
        self,
        laid_out: Step,
        denominator: float,
        counters: Counters,
        loss_scale: float,
        all_tokens: float | None,
        forget: Callable[[], None],
    ) -> Gradient:
        how: dict[str, Any] = {"loss_scale": loss_scale, "all_tokens": all_tokens}
        try:
            return laid_out.run(denominator, self.reference, backward=True, **how)
        except torch.cuda.OutOfMemoryError as error:
            if self.policy.sharded:  # the others wait in the middle of a pass, and cannot be joined there
                raise _out_of_memory(counters, laid_out) from error
        # Outside the handler: its exception keeps the tensors of the failed pass in memory.
        counters.budget //= 2
        log.warning("Out of GPU memory: trying step %d again with token_budget %d.", counters.step + 1, counters.budget)
        forget()
        self.policy.row_reader.free_memory()
        again = self._laid_out(laid_out.parts, counters)
        try:
            return again.run(denominator, self.reference, backward=True, **how)
        except torch.cuda.OutOfMemoryError as error:
            raise _out_of_memory(counters, again) from error

    def _summed(self, found: Gradient) -> Gradient:
        """The same with the loss and the metrics of all processes."""
        loss, metrics = self.processes.sum_metrics(found.loss, found.metrics)
        return replace(found, loss=loss, metrics=metrics)

    def _parts(self, examples: Sequence[Example]) -> tuple[list[Example], float]:
        """The parts of this process's examples, and the denominator of all processes'."""
        denominator = self.processes.sum(sum(map(self.method.amount, examples)))
        return [part for example in examples for part in self.method.parts(example)], denominator

    def _laid_out(self, parts: Sequence[Example], counters: Counters) -> Step:
        return Step(self.policy, self.method, parts, budget=counters.budget, share=self.share)


def _out_of_memory(counters: Counters, laid_out: Step) -> BoughError:
    step, longest = counters.step + 1, laid_out.longest_call
    if longest > counters.budget:  # a smaller budget would change nothing: a call is never cut
        return BoughError(
            f"out of GPU memory in step {step}: a call of {longest:,} tokens does not fit one GPU, and a call cannot "
            f"be spread over several; try a --max-length below {longest}, --gradient-checkpointing, --qlora or "
            "--shard over more GPUs, then --resume"
        )
    return BoughError(
        f"out of GPU memory in step {step} even with token_budget {counters.budget}; "
        "try a smaller --token-budget, --gradient-checkpointing, a smaller --max-length or --qlora, then --resume"
    )
