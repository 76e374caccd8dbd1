"""Bough as a contender: an optimizer step as its training loop takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from measure import Gauge, matmul_rate
from torch import nn
from work import Sizes

import models
from bough.policy.adapters import Lora, add_actor
from bough.policy.policy import Policy
from bough.policy.reference import Reference
from bough.training.checkpoint import make_optimizer
from bough.training.method import Example, Method
from bough.training.step import Gradient, Step


@dataclass
class Ours:
    """A policy in training. `known` are reference log-probabilities computed beforehand, if any."""

    policy: Policy
    method: Method[Any]
    budget: int
    share: bool = True
    known: Reference | None = None

    def __post_init__(self) -> None:
        self.policy.train()
        self.optimizer = make_optimizer(
            self.policy.named_parameters(), kind="adamw", learning_rate=LEARNING_RATE, weight_decay=0.0
        )
        self.reference = self.known or (Reference(self.policy) if self.method.needs_reference else None)

    def gauge(self, examples: Sequence[Example]) -> Gauge:
        """Loss and gradient norm before any update."""
        loss = self._gradient(examples).loss
        norm = float(self._clip())
        self.optimizer.zero_grad()
        return Gauge(loss, norm)

    def step(self, examples: Sequence[Example]) -> Gradient:
        found = self._gradient(examples)
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found

    def laid_out(self, examples: Sequence[Example]) -> Step:
        parts = [part for example in examples for part in self.method.parts(example)]
        return Step(self.policy, self.method, parts, budget=self.budget, share=self.share)

    def layout(self, examples: Sequence[Example], seconds: float, *, reference: bool) -> str:
        """How many tokens a step computes, in which rows, and how near that came to the machine's limit."""
        rows = self.laid_out(examples).rows
        text = f"{sum(row.num_raw for row in rows):,} tokens as {sum(row.tokens.size for row in rows):,}"
        text += f" in {len(rows)} row{'s'[: len(rows) > 1]}"
        if not self.share:
            return text
        rate = Sizes.of(self.policy.model).training(rows, reference=reference) / seconds
        return f"{text}; {rate / 1e12:.3g} TFLOP/s, {rate / matmul_rate():.0%} of the matmul rate"

    def _gradient(self, examples: Sequence[Example]) -> Gradient:
        denominator = sum(map(self.method.amount, examples))
        return self.laid_out(examples).run(denominator, self.reference, backward=True)

    def _clip(self) -> torch.Tensor:
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        return nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)


LEARNING_RATE, MAX_GRADIENT_NORM = 1e-6, 1.0


def policy_of(name: str, *, lora: Lora | None, checkpointing: bool, compile: bool = False) -> Policy:
    """The model as a policy, with an adapter or to be trained in full, in the precision of Bough's stages."""
    model = models.build(name, full=lora is None, checkpointing=checkpointing)
    if lora:
        model = add_actor(model, lora)
        models.fill_adapter(model)
    return Policy(model, autocast=torch.bfloat16 if torch.cuda.is_available() else None, compile=compile)
