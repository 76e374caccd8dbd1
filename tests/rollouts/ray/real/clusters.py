"""Ray clusters on this machine, and how their processes are killed. Only processes of the own cluster are touched."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bough.rollouts.ray import import_ray

MEMORY = 100_000_000
# The classes that Bough's workers are objects of, as Ray writes them into the names of processes.
WORKERS = (b"ray::Worker", b"ray::Part")
DEADLINE_S = 100


def until(condition: Callable[[], object]) -> None:
    """Waits for something that happens sooner or later."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


class TestCluster:
    """A head without workers, and `size` nodes with these resources each."""

    __test__ = False

    def __init__(self, size: int = 2, *, cpus: int = 1, gpus: int = 0, env_vars: dict[str, str] | None = None) -> None:
        import_ray()  # as Bough does it: what Ray prints is set when it is imported
        from ray.cluster_utils import Cluster

        self._each = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": MEMORY, "env_vars": env_vars or {}}
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._size = size
        self.nodes: list[Any] = []
        self.refill()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **more: Any) -> Any:
        """One more node. Ray starts nodes in the main thread only."""
        node = self._cluster.add_node(**(self._each | more))
        self.nodes.append(node)
        return node

    def refill(self) -> None:
        """Adds nodes in the place of those that were removed, and removes those that were added."""
        while len(self.nodes) > self._size:
            self.remove(-1)
        while len(self.nodes) < self._size:
            self.add()

    def workers(self) -> list[int]:
        """The processes that work, or are getting ready to."""
        return [process for node in self.nodes for process in _workers(node)]

    def kill_worker(self, choose: Callable[[list[int]], int] = min) -> None:
        """kill -9 of a worker; nothing where there is none now."""
        if found := self.workers():
            with suppress(ProcessLookupError):
                os.kill(choose(found), signal.SIGKILL)

    def kill_node(self, number: int) -> None:
        """kill -9 of a raylet, and with it of the node's workers; then another node joins in its place."""
        self.remove(number)
        self.add()

    def remove(self, number: int, *, wait: bool = False) -> None:
        """kill -9 of a raylet. Its workers end by themselves within about a second, and may still answer before.

        With `wait` they have ended when this returns.
        """
        node = self.nodes.pop(number)
        workers = _workers(node)
        self._cluster.remove_node(node, allow_graceful=False)
        if wait:
            until(lambda: not any(_name(process) for process in workers))

    def number_of(self, node_id: str) -> int:
        """Which of the nodes has this id."""
        return [node.node_id for node in self.nodes].index(node_id)

    def shutdown(self) -> None:
        import_ray().shutdown()
        self._cluster.shutdown()


@contextmanager
def started(*given: Any, **settings: Any) -> Iterator[TestCluster]:
    """A cluster; this process is not connected to it."""
    made = TestCluster(*given, **settings)
    try:
        yield made
    finally:
        made.shutdown()


def _workers(node: Any) -> list[int]:
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if parent == raylet and _name(int(folder.name)).startswith(WORKERS):
            found.append(int(folder.name))
    return found


def _name(process: int) -> bytes:
    """How a process calls itself; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
