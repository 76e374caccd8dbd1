"""The processes of one training run: one by default, several under `accelerate launch` or `torchrun`.

Each process has its share of every step's examples, and the whole policy unless that is
sharded (then `shard.py` adds up the gradients). Losses carry the denominator of the whole
step, so gradients and metrics only need adding up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch import Tensor, nn

from bough.metrics import Mean, add_metrics

T = TypeVar("T")
# Gradients travel in pieces of about this many numbers.
BUCKET = 2**25


class Processes:
    """Which process this is, and how it adds up with the others."""

    def __init__(self) -> None:
        # Accelerate does not group processes on CPUs unless it is told that they run on CPUs.
        self.state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())
        self.rank, self.count = self.state.process_index, self.state.num_processes
        self.first = self.state.is_main_process
        self.device: torch.device = self.state.device

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of `items`: every n-th stretch of neighbours, which share tokens."""
        per_process = -(-len(items) // self.count)
        return list(items[self.rank * per_process : (self.rank + 1) * per_process])

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, the first's first: `share` undone."""
        return items if self.count == 1 else list(gather_object(items))

    def sum(self, value: float) -> float:
        return float(sum(self.gather([value])))

    def sum_counts(self, *counts: int) -> list[int]:
        return [sum(each) for each in zip(*self.gather([counts]), strict=True)]

    def sum_metrics(self, loss: float, metrics: dict[str, Mean]) -> tuple[float, dict[str, Mean]]:
        """The loss and the metrics of all processes."""
        own = {name: Mean(float(mean.total), float(mean.count)) for name, mean in metrics.items()}
        gathered = self.gather([(loss, own)])
        return sum(each[0] for each in gathered), add_metrics(each[1] for each in gathered)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Adds up every trained parameter's gradient over the processes, in a few large pieces."""
        if self.count == 1:
            return
        bucket: list[Tensor] = []
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # this process had no example
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET:
                _sum(bucket)
                bucket = []
        if bucket:
            _sum(bucket)

    def wait(self) -> None:
        self.state.wait_for_everyone()


def _sum(bucket: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in bucket])
    torch.distributed.all_reduce(flat)
    offset = 0
    for gradient in bucket:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
