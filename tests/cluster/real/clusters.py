"""Ray clusters on this machine, and how their processes are killed. Only processes of the own cluster are touched."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bough.cluster.connection import import_ray

MEMORY = 100_000_000


class TestCluster:
    """A head without workers, and nodes with room for one worker each."""

    __test__ = False

    def __init__(self, nodes: int = 2) -> None:
        import_ray()  # as Bough does it: what Ray prints is set when it is imported
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(nodes)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **more):
        return self._cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **more)

    def workers(self) -> list[int]:
        """The processes that play, or are getting ready to."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self._cluster.worker_nodes}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it has ended meanwhile
                continue
            if name.startswith(b"ray::_Actor") and parent in raylets:
                found.append(int(folder.name))
        return found

    def kill_worker(self, choose: Callable[[list[int]], int]) -> None:
        """kill -9 of a worker; nothing where there is none now."""
        if found := self.workers():
            with suppress(ProcessLookupError):
                os.kill(choose(found), signal.SIGKILL)

    def kill_node(self, number: int) -> None:
        """kill -9 of a raylet, and with it of the node's workers; then another node joins in its place."""
        self.remove(number)
        self.nodes.append(self.add())

    def remove(self, number: int) -> None:
        self._cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def shutdown(self) -> None:
        self._cluster.shutdown()
