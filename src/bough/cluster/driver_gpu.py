"""The GPU that the driver trains on, taken from Ray so that no worker is put on it.

Ray counts the GPUs of its nodes, and does not know of a driver that uses one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bough.cluster.connection import import_ray, nodes_by_id
from bough.config.cluster import ClusterConfig

# A GPU that Ray has not given after this long is used by others.
HOLD_S = 30.0


class _Holder:
    """An actor that only has a GPU, or a part of one."""

    def gpus(self) -> list[str]:
        return [str(one) for one in import_ray().get_runtime_context().get_accelerator_ids()["GPU"]]


def driver_share(config: ClusterConfig, gpus: float) -> float:
    """What the driver gets of its GPU, in a cluster with this many of them.

    That is a whole GPU, or a part as large as a worker's where workers share GPUs. It is nothing where the
    workers that the settings ask for need all GPUs.
    """
    if not config.gpus_per_worker:  # workers take what is left, or none
        return 1.0
    share = min(config.gpus_per_worker, 1.0)
    left = gpus - (config.workers or 1) * config.gpus_per_worker
    return share if left >= share - 1e-9 else 0.0


@contextmanager
def held_gpu(config: ClusterConfig, index: int, say: Callable[[str], None]) -> Iterator[float]:
    """Takes the GPU with this index for this process; yields how much of it. What was chosen is said."""
    ray = import_ray()
    node, resources = ray.get_runtime_context().get_node_id(), nodes_by_id()
    here = resources.get(node, {}).get("GPU", 0)
    if not here:  # Ray has no GPU of this machine, so no worker can be put on it
        yield 0.0
        return
    name, share = _name(index), driver_share(config, sum(one.get("GPU", 0) for one in resources.values()))
    if not share:
        say(f"training runs on GPU {name} of this machine, which Ray also gives to workers: they need all GPUs")
        yield 0.0
        return
    holder = _hold(ray, node, share, name, most=int(here / share + 1e-9))
    if holder is None:
        say(f"training runs on GPU {name} of this machine, which others use through Ray: `ray status` shows how much")
    elif share < 1:
        say(f"training runs on GPU {name} of this machine beside workers, and counts as {share:g} GPUs")
    else:
        say(f"training runs on GPU {name} of this machine; workers use other GPUs, or CPUs")
    try:
        yield share
    finally:
        if holder is not None:
            ray.kill(holder)


def _hold(ray: Any, node: str, share: float, name: str, most: int) -> Any:
    """An actor that has the GPU of this name. Ray chooses GPUs itself, so up to `most` actors are tried.

    Where names cannot be compared it has any GPU of the node, so that their number is right. None where all are used.
    """
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    remote = ray.remote(_Holder).options(num_cpus=0, num_gpus=share, max_restarts=0, scheduling_strategy=strategy)
    tried, kept = [], None
    for _ in range(most):
        tried.append(remote.remote())
        try:
            names = ray.get(tried[-1].gpus.remote(), timeout=HOLD_S)
        except ray.exceptions.RayError:
            break
        if name in names:
            kept = tried[-1]
            break
        kept = kept or tried[-1]
    for one in tried:
        if one is not kept:
            ray.kill(one)
    return kept


def _name(index: int) -> str:
    """The name of a GPU on its machine. This process may see only some of them."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[index] if index < len(seen) else str(index)
