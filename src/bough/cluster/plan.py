"""How many workers a cluster has room for, and what each of them gets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bough.config.cluster import ClusterConfig
from bough.plural import plural

# What a worker's environments and its event loop need; models on a CPU compute in one thread.
CPUS_PER_WORKER = 1.0
Resources = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """Workers to start, the resources of each and the episodes that each plays at the same time.

    `room` is how many of them the cluster has resources for now; the others start when it grows.
    """

    workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    concurrency: int
    room: int
    cluster: str = ""

    def __str__(self) -> str:
        gpus = f" and {plural(self.gpus_per_worker, 'GPU')}" if self.gpus_per_worker else ""
        each = f"with {plural(self.cpus_per_worker, 'CPU')}{gpus}{' each' if self.workers > 1 else ''}"
        line = (
            f"cluster of {self.cluster}: {plural(self.workers, 'worker')} {each}, "
            f"up to {plural(self.concurrency, 'episode')} at the same time {'in each' if self.workers > 1 else 'in it'}"
        )
        if self.room < self.workers:
            line += f"; there is room for {self.room} now, the others start when the cluster grows"
        return line

    def room_on(self, node: Resources) -> int:
        """The number of workers that a node has the resources for."""
        return _room(node, self.gpus_per_worker)


def make_plan(
    config: ClusterConfig,
    nodes: Collection[Resources],
    *,
    concurrency: int,
    uses_gpu: bool,
    reserved_gpus: float = 0,
    reserved_cpus: float = 0,
) -> Plan:
    """The plan for `concurrency` episodes at the same time on these nodes, given by their resources.

    `uses_gpu`: whether workers compute a model themselves. What is reserved is for the learners.
    """
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    per_worker = config.gpus_per_worker
    if per_worker is None:
        per_worker = 1.0 if uses_gpu and gpus > reserved_gpus else 0.0
    room = sum(_room(node, per_worker) for node in nodes)
    if per_worker:
        room = min(room, math.floor((gpus - reserved_gpus) / per_worker + 1e-9))
    room = max(min(room, math.floor((cpus - reserved_cpus) / CPUS_PER_WORKER + 1e-9)), 0)
    workers = config.workers or max(1, min(room, concurrency))
    return Plan(
        workers=workers,
        cpus_per_worker=CPUS_PER_WORKER,
        gpus_per_worker=per_worker,
        concurrency=math.ceil(concurrency / workers),
        room=room,
        cluster=f"{plural(len(nodes), 'node')}, {plural(cpus, 'CPU')} and {plural(gpus, 'GPU')}",
    )


def _room(node: Resources, gpus: float) -> int:
    """Workers that fit on a node. Parts of a GPU are taken from one GPU each: of 0.4 two fit on it."""
    by_cpu = math.floor(node.get("CPU", 0) / CPUS_PER_WORKER + 1e-9)
    if not gpus:
        return by_cpu
    on_node = math.floor(node.get("GPU", 0) + 1e-9)
    by_gpu = on_node * math.floor(1 / gpus + 1e-9) if gpus <= 1 else on_node // int(gpus)
    return min(by_cpu, by_gpu)
