"""Losses and gradients of whole batches: over all processes, within the memory of the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bough.errors import BoughError, first_line
from bough.methods.base import Example, Method
from bough.metrics import Mean
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reference import ReferenceLogprobs
from bough.training.counters import Counters
from bough.training.remedy import Remedy, next_remedy
from bough.training.step import Gradient, Step

log = logging.getLogger(__name__)


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
        loss_scale: float,
        forget: Callable[[], None],
    ) -> Gradient:
        """This process's loss, metrics and tokens, for `read`; the gradient, times `loss_scale`, is that of all.

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
            loss_scale=loss_scale,
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
                if not self.policy.layers.compiled:
                    raise
                remedy, failure = None, first_line(error)
            # Outside the handler: its exception keeps the tensors of the failed pass in memory.
            if forget:
                forget()
            if remedy is None:
                self.policy.layers.uncompile(failure)
            elif remedy == "recordings":
                self.policy.row_reader.give_way()
            elif remedy == "half the budget":
                laid_out, halved = self._halved(what, laid_out, counters), True
            else:
                log.warning("Out of GPU memory: trying %s again with gradient checkpointing, which is slower.", what)
                self.policy.layers.recompute()
                counters.gradient_checkpointing = True
            self.policy.row_reader.free_memory()

    def _halved(self, what: str, laid_out: Step, counters: Counters) -> Step:
        """The same parts in rows of half the token budget, which is that of the run from now on."""
        counters.budget //= 2
        log.warning("Out of GPU memory: trying %s again with token_budget %d.", what, counters.budget)
        return Step(
            self.policy,
            self.method,
            laid_out.parts,
            budget=counters.budget,
            share=self.share,
            totals=laid_out.totals,
        )

    def _out_of_memory(self, what: str, laid_out: Step, counters: Counters) -> BoughError:
        longest, recomputes = laid_out.longest_call, self.policy.layers.recomputed
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
        parts = [part for example in examples for part in self.method.parts(example)]
        return Step(self.policy, self.method, parts, budget=counters.budget, share=self.share)
