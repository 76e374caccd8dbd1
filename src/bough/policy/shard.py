"""Weights in pieces, one on each process (FSDP2): a layer is whole only while it is read.

Checkpoints hold whole tensors, whoever wrote them, so that any number of processes can resume from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


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
