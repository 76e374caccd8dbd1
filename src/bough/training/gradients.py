"""Losses and gradients of whole batches: over all processes, within the memory of the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bough.errors import BoughError, first_line
from bough.methods.base import Example, Method
from bough.metrics import Mean
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

    def measure(self, examples: Sequence[Example], counters: Counters) -> tuple[float, dict[str, Mean]]:
        """The loss and the metrics of all processes together, without a gradient."""
        denominator = self._denominator(examples)
        return self.read(self._laid_out(examples, counters).run(denominator, self.reference, backward=False))

    def backward(
        self,
        examples: Sequence[Example],
        counters: Counters,
        laid_out: Step | None = None,
        *,
        loss_scale: float,
        forget: Callable[[], None],
    ) -> Gradient:
        """This process's loss, metrics and tokens, for `read`; the gradient, times `loss_scale`, is that of all.

        `laid_out` are the examples in rows of the present budget, where they were packed ahead.
        Where memory runs out, the gradient is computed again: without recordings, then with half the token
        budget. Where layers cannot be compiled, without. `forget` clears what an attempt left of it.
        """
        denominator = self._denominator(examples)
        laid_out = laid_out or self._laid_out(examples, counters)
        # Only a loss over all computed tokens asks the other processes for theirs.
        all_tokens = self.processes.sum(laid_out.num_tokens) if self.policy.router_coefficient else None
        found = self._within_memory(laid_out, denominator, counters, loss_scale, all_tokens, forget)
        if not self.policy.sharded:
            self.processes.sum_gradients(self.policy.parameters())
        return found

    def read(self, found: Gradient) -> tuple[float, dict[str, Mean]]:
        """The loss and the metrics of all processes, as numbers: waits for the GPU."""
        return self.processes.sum_metrics(found.loss, found.metrics)

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
        halved, failure = False, ""
        while True:
            try:
                return laid_out.run(denominator, self.reference, backward=True, **how)
            except torch.cuda.OutOfMemoryError as error:
                # Sharded, the others wait in the middle of a pass, and cannot be joined there.
                if self.policy.sharded or (halved and not self.policy.row_reader.has_recordings):
                    raise _out_of_memory(counters, laid_out) from error
            except torch._dynamo.exc.TorchDynamoException as error:  # of a backward pass
                if not self.policy.compiled:
                    raise
                failure = first_line(error)
            # Outside the handler: its exception keeps the tensors of the failed pass in memory.
            forget()
            if failure:
                self.policy.uncompile(failure)
                failure = ""
            elif not self.policy.row_reader.give_way():  # the memory of recordings may have been enough
                laid_out, halved = self._halved(laid_out, counters), True
            self.policy.row_reader.free_memory()

    def _halved(self, laid_out: Step, counters: Counters) -> Step:
        """The same parts in rows of half the token budget, which is that of the run from now on."""
        counters.budget //= 2
        log.warning("Out of GPU memory: trying step %d again with token_budget %d.", counters.step + 1, counters.budget)
        return Step(self.policy, self.method, laid_out.parts, budget=counters.budget, share=self.share)

    def _denominator(self, examples: Sequence[Example]) -> float:
        """That of all processes' examples."""
        return self.processes.sum(sum(map(self.method.amount, examples)))

    def _laid_out(self, examples: Sequence[Example], counters: Counters) -> Step:
        parts = [part for example in examples for part in self.method.parts(example)]
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
