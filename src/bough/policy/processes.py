"""The processes of one training run: one by default, several under `accelerate launch` or `torchrun`.

Each process has its share of every step's examples, and the whole policy unless that is
sharded (then sharding adds up the gradients). Losses carry the denominator of the whole
step, so gradients and metrics only need adding up.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from bough.errors import BoughError, exception_line
from bough.ledger import Mean, add_metrics, plural

log = logging.getLogger(__name__)
T = TypeVar("T")
# Gradients travel in pieces of about this many numbers.
BUCKET = 2**25


class Processes:
    """Which process this is, and how it adds up with the others."""

    def __init__(self) -> None:
        # Accelerate does not group processes on CPUs unless it is told that they run on CPUs.
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        count = torch.cuda.device_count()
        # Several processes on one GPU, which NCCL refuses. Ray Train has joined them already.
        if not cpu and torch.cuda.is_available() and _on_this_machine() > count and not distributed.is_initialized():
            distributed.init_process_group(backend="gloo")
            if distributed.get_rank() == 0:
                shared = f"{_on_this_machine()} processes share {plural(count, 'GPU')}"
                log.warning("%s: they communicate through gloo, which is slower than NCCL.", shared)
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


def _on_this_machine() -> int:
    """The number of processes of the run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _sum(bucket: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in bucket])
    torch.distributed.all_reduce(flat)
    offset = 0
    for gradient in bucket:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


# Weights in pieces, one on each process (FSDP2): a layer is whole only while it is read.
# Checkpoints hold whole tensors, whoever wrote them, so that any number of processes can resume from them.


def shard(root: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> None:
    """Cuts every weight of `root` into as many pieces as there are processes; gradients are added up over them."""
    # Log-probabilities are views of one tensor and are never changed in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in [*layers, root]:
        fully_shard(module, mesh=mesh)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses carry the denominator of the whole step: a sum, not a mean.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether the weights of any of these are in pieces."""
    return any(isinstance(module, FSDPModule) for module in modules)


def most(number: int, device: torch.device) -> int:
    """The largest `number` of all processes."""
    largest = torch.tensor(number, device=device)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return int(largest)


def whole(tensor: Tensor) -> Tensor:
    """The tensor of which this may be a piece; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each whole; of pieces that is on the first process alone, one after the other.

    Tied weights, which are one tensor under two names, stay one.
    """
    found: dict[str, Tensor] = {}
    done: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor.detach()
            continue
        if id(tensor) not in done:
            gathered = whole(tensor.detach())
            done[id(tensor)] = gathered.cpu() if distributed.get_rank() == 0 else gathered.new_empty(0)
        found[name] = done[id(tensor)]
    return found


def piece(value: Tensor, like: Tensor) -> Tensor:
    """This process's piece of a whole tensor, cut as `like` is, if that is a piece of such a shape."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    # Every process has read the whole tensor: it need not be sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


# Messages from the first process of a run to the others, and its errors with them.
# The others may wait for hours while the first one plays episodes. So messages have a process group of their own, on
# CPUs and without the usual time limit, and whoever waits can be interrupted: an error in the first process, or
# Ctrl-C there, ends all of them.

# Longer than any batch takes to play; gloo has no "forever".
TIME_LIMIT = timedelta(days=30)
POLL_S = 0.002
# How long the first process, which has failed, waits for the others to hear of it.
PATIENCE_S = 3.0
# What gloo says where the process at the other end of a connection is gone.
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class ProcessLostError(BoughError):
    """Another process has ended without a word to this one."""

    def __init__(self, message: str = "another process of this run has ended; its own message says why") -> None:
        super().__init__(message)

    @staticmethod
    def explains(error: BaseException) -> bool:
        """Whether an error of torch.distributed only says that another process is gone."""
        return isinstance(error, RuntimeError) and any(words in str(error) for words in CLOSED)


class Messages:
    """Messages within the process group of torch.distributed."""

    _open: tuple[Any, Messages] | None = None

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=TIME_LIMIT)
        self._rank, self._count = distributed.get_rank(), distributed.get_world_size()
        self._known: BaseException | None = None  # the error that all processes have

    @classmethod
    def of_all(cls) -> Messages:
        """The messages of the present process group; every process must ask for them at the same point."""
        world = distributed.group.WORLD
        if cls._open is None or cls._open[0] is not world:
            cls._open = world, cls()
        return cls._open[1]

    def deal(self, work: Callable[[], Sequence[T]]) -> T:
        """`Processes.first_deals`."""
        if self._rank:
            received: tuple[T, BaseException | None] = pickle.loads(self._exchange(None))  # noqa: S301  our own
            if received[1] is not None:
                self._known = received[1]
                raise received[1]
            return received[0]
        try:
            items = work()
            packed = [pickle.dumps((item, None)) for item in items[1:]]
        except BaseException as error:
            self.report_failure(error)
            self._known = error
            raise
        self._exchange(packed)
        return items[0]

    def report_failure(self, error: BaseException) -> None:
        """Sends an error of the first process; gives up where the others do not wait for a message."""
        if error is self._known:
            return
        with suppress(ProcessLostError):  # they have ended too
            self._exchange([packed_error(error)] * (self._count - 1), patience_s=PATIENCE_S)

    def _exchange(self, messages: list[bytes] | None, *, patience_s: float | None = None) -> bytes:
        """The first process sends one message to each of the others, which pass None and get theirs."""
        sizes = torch.zeros(self._count, dtype=torch.int64)
        if messages is not None:
            sizes[1:] = torch.tensor([len(message) for message in messages])
        deadline = None if patience_s is None else time.monotonic() + patience_s
        _finish(distributed.broadcast(sizes, 0, group=self._group, async_op=True), deadline)
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        pieces = None if messages is None else [mine, *(_padded(message, len(mine)) for message in messages)]
        _finish(distributed.scatter(mine, pieces, 0, group=self._group, async_op=True), deadline)
        return mine[: int(sizes[self._rank])].numpy().tobytes()


def _finish(work: Any, deadline: float | None) -> None:
    """Waits in Python, where Ctrl-C is heard, until `work` is done or the deadline has passed."""
    while not work.is_completed():
        if deadline is not None and time.monotonic() > deadline:
            raise ProcessLostError()
        time.sleep(POLL_S)
    try:
        work.wait()
    except RuntimeError as error:  # gloo: the connection was closed
        raise ProcessLostError() from error


def _padded(message: bytes, size: int) -> Tensor:
    padded = torch.zeros(size, dtype=torch.uint8)
    padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    return padded


def packed_error(error: BaseException) -> bytes:
    """No value and this error, as a message. What cannot be pickled becomes a BoughError with its text."""
    try:
        content = pickle.dumps((None, error))
        _, copy = pickle.loads(content)  # noqa: S301  our own
        if type(copy) is type(error) and str(copy) == str(error):
            return content
    except Exception:  # noqa: S110  an author's exception may fail in any way
        pass
    same = BoughError(str(error) if isinstance(error, BoughError) else exception_line(error))
    same.exit_code = getattr(error, "exit_code", 1)
    return pickle.dumps((None, same))


def unused_bytes(device: torch.device, processes: int = 1) -> int:
    """What is free on a GPU that `processes` of this run share, and within this process's part of it, if it has one."""
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    part = total * torch.cuda.get_per_process_memory_fraction(index) - torch.cuda.memory_reserved(index)
    return int(max(min(free // processes, part), 0))


def unused_fraction(device: torch.device, keep: int = 0) -> float:
    """The same as a fraction of all memory of the GPU, less `keep` bytes."""
    return (unused_bytes(device) - keep) / torch.cuda.mem_get_info(device)[1]
