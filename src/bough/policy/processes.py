"""The processes of one training run: one by default, several under `accelerate launch` or `torchrun`.

Each process has its share of every step's examples, and the whole policy unless that is
sharded (then `shard.py` adds up the gradients). Losses carry the denominator of the whole
step, so gradients and metrics only need adding up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch import Tensor, nn

from bough.metrics import Mean, add_metrics
from bough.policy.messages import Messages

log = logging.getLogger(__name__)
T = TypeVar("T")
# Gradients travel in pieces of about this many numbers.
BUCKET = 2**25


class Processes:
    """Which process this is, and how it adds up with the others."""

    def __init__(self) -> None:
        # Accelerate does not group processes on CPUs unless it is told that they run on CPUs.
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        if not cpu and _share_a_gpu():
            _join_with_gloo()
        self.state = PartialState(cpu=cpu)
        self.rank, self.count = self.state.process_index, self.state.num_processes
        self.first = self.state.is_main_process
        self.device: torch.device = self.state.device

    @property
    def per_gpu(self) -> int:
        """How many processes of the run share a GPU of this machine."""
        return -(-_on_this_machine() // max(1, torch.cuda.device_count()))

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of `items`: every n-th stretch of neighbours, which share tokens."""
        per_process = -(-len(items) // self.count)
        return list(items[self.rank * per_process : (self.rank + 1) * per_process])

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, the first's first: `share` undone."""
        return items if self.count == 1 else list(gather_object(items))

    def first_does(self, work: Callable[[], T]) -> T:
        """What `work` returns in the first process, in all of them. What it raises there is raised in all of them."""
        return self.first_deals(lambda: [work()] * self.count)

    def first_deals(self, work: Callable[[], Sequence[T]]) -> T:
        """The first process's `work` returns one item per process; each gets its own. Errors are raised in all."""
        return work()[0] if self.count == 1 else Messages.of_all().deal(work)

    def report_failure(self, error: BaseException) -> None:
        """Raises an error of the first process in those that wait for it, unless it was raised there already."""
        if self.count > 1 and self.first:
            Messages.of_all().report_failure(error)

    def sum(self, value: float) -> float:
        return float(sum(self.gather([value])))

    def sum_counts(self, *counts: int) -> list[int]:
        return [sum(each) for each in zip(*self.gather([counts]), strict=True)]

    def any(self, flag: Tensor) -> Tensor:
        """Whether a flag holds in any process, as a tensor like it: nothing waits for a GPU."""
        if self.count == 1:
            return flag
        found = flag.float()
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return found > 0

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
        if self.count > 1 and torch.distributed.get_backend() == "gloo":
            torch.distributed.barrier()  # Accelerate names a device, which a shared GPU is not
        else:
            self.state.wait_for_everyone()


def deal(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The indices of `sizes` in `count` shares of nearly equal sums: the largest first, to the smallest share."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(i)
        loads[lightest] += sizes[i]
    return [sorted(share) for share in shares]


def _share_a_gpu() -> bool:
    """Whether this machine has more processes of the run than GPUs."""
    return torch.cuda.is_available() and _on_this_machine() > torch.cuda.device_count()


def _on_this_machine() -> int:
    """The number of processes of the run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _join_with_gloo() -> None:
    """Several processes on one GPU, which NCCL refuses. Ray Train has joined them already."""
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group(backend="gloo")
    if torch.distributed.get_rank() == 0:
        count = torch.cuda.device_count()
        log.warning(
            "%s processes share %d GPU%s: they communicate through gloo, which is slower than NCCL.",
            os.environ["LOCAL_WORLD_SIZE"], count, "" if count == 1 else "s",
        )  # fmt: skip


def _sum(bucket: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in bucket])
    torch.distributed.all_reduce(flat)
    offset = 0
    for gradient in bucket:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
