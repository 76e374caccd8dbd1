"""Ray clusters of several nodes on this machine."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MEMORY = 100_000_000


@contextmanager
def start_cluster(cpus: Sequence[int], gpus: int = 0) -> Iterator[Any]:
    """A cluster with a node for each number of CPUs; this process is not connected. The first, its head, has `gpus`."""
    import ray
    from ray.cluster_utils import Cluster

    # Nodes import what this process can import, whatever the folder that a test works in.
    os.environ["PYTHONPATH"] = ":".join(filter(None, [str(Path.cwd()), *sys.path]))
    settings = {"num_cpus": cpus[0], "num_gpus": gpus, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    try:
        for number in cpus[1:]:
            cluster.add_node(num_cpus=number, object_store_memory=MEMORY)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
