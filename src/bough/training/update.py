"""From gradients to new weights: the learning rate, clipping, and the loss scale of float16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from bough.config.training import TrainingConfig
from bough.policy.shard import whole
from bough.training.optimizer import learning_rate, make_optimizer

# The lowest loss scale at which gradients may overflow float16 because of it. A run starts with 65536, and each
# overflow halves it.
LOWEST_SCALE = 1.0


class Trained(Protocol):
    """What is trained: a policy, or one member of a population."""

    @property
    def device(self) -> torch.device: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Updater:
    """The optimizer of a run, and how the settings say to use it."""

    def __init__(self, policy: Trained, config: TrainingConfig) -> None:
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
        self.guarded = fused and not config.machine.fp16 and not config.machine.shard
        # Gradients too small for float16 are scaled into its range; where they overflow, the step is skipped.
        self.scaler = torch.amp.GradScaler(policy.device.type, enabled=config.machine.fp16)
        self.scaler.scale(torch.zeros((), device=policy.device))  # until then it has no scale

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

    @property
    def may_overflow(self) -> bool:
        """Whether gradients that are not finite may be those of a loss scale that is too high."""
        return self.scaler.is_enabled() and self.scaler.get_scale() >= LOWEST_SCALE

    def clip(self) -> Tensor:
        """Clips the gradients, unscaled first; returns the norm that they had, the same number in every process."""
        self.scaler.unscale_(self.optimizer)
        return whole(torch.nn.utils.clip_grad_norm_(self._trained, self.config.optimizer.max_grad_norm))

    def apply(self, broken: Tensor | None = None) -> bool:
        """Changes the weights by their gradients; False where those overflow in float16, and nothing was changed.

        Given to an optimizer that is `guarded`, `broken` says whether to change nothing.
        """
        if broken is not None:
            # What GradScaler tells an optimizer: with 1, its step changes nothing.
            self.optimizer.found_inf = broken.float()  # type: ignore[attr-defined]
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return self.scaler.get_scale() >= scale
