"""Functions that run on the nodes of a cluster, each call in a worker process there.

A call whose worker or node is lost is made again elsewhere. An error that the function raises is raised here.
Calls are cancelled by killing their workers, so what a function starts must end with its process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bough.cluster.connection import ClusterLostError, import_ray
from bough.cluster.plan import Plan
from bough.errors import BoughError

# Losses of one call after which it fails: it may be the reason for them, for example by its memory.
MAX_LOSSES = 5
POLL_S, SAY_EVERY_S = 1.0, 30.0
# Time for workers to end after their calls were cancelled.
STOP_S = 20.0

Notify = Callable[[str], None]


class WorkLostError(BoughError):
    """The worker of a call was lost each time it was made."""


class Tasks:
    """Calls functions on the nodes, with the resources of the plan's workers for each call. Threads may share it."""

    def __init__(self, plan: Plan, timeout_s: float, notify: Notify) -> None:
        self.plan, self.notify, self.losses = plan, notify, 0
        self._ray = import_ray()
        self._without_room = WithoutRoom(timeout_s, notify)
        self._lock, self._running, self._stopped = threading.Lock(), set[Any](), False

    def call(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """The result of the function. `what` names the call in messages."""
        losses = 0
        while True:
            try:
                return self._result(self._start(function, given))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else BoughError(str(error)) from None
            except self._ray.exceptions.TaskCancelledError:
                raise BoughError(f"{what} was cancelled") from None
            except self._ray.exceptions.RayError as error:
                losses += 1
                with self._lock:
                    self.losses += 1
                why = type(error).__name__.removesuffix("Error")
                if losses >= MAX_LOSSES:
                    raise WorkLostError(f"its worker on the cluster was lost {losses} times ({why})") from error
                self.notify(f"{what}: its worker was lost ({why}); starting it again")

    def on_each_node(self, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
        """The result on every node that has CPUs, by the node's address; without nodes that are lost before."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        remote = self._ray.remote(num_cpus=0, max_retries=0)(function)
        started = {
            node["NodeID"]: remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(*given)
            for node in nodes
        }
        found = {}
        for node in nodes:
            try:
                found[node["NodeManagerAddress"]] = self._ray.get(started[node["NodeID"]])
            except self._ray.exceptions.RayTaskError:
                raise
            except self._ray.exceptions.RayError:
                continue
        return found

    def stop(self) -> None:
        """Kills the workers of all calls and waits until they have ended."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for one in running:
            self._ray.cancel(one, force=True)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=STOP_S)

    def _start(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        remote = self._ray.remote(
            num_cpus=self.plan.cpus_per_worker,
            num_gpus=self.plan.gpus_per_worker,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )(function)
        with self._lock:
            if self._stopped:
                raise BoughError("the work on the cluster was stopped")
            started = remote.remote(*given)
            self._running.add(started)
        return started

    def _result(self, started: Any) -> Any:
        try:
            while not self._ray.wait([started], timeout=POLL_S)[0]:
                with self._lock:
                    self._without_room.check(self._has_room())
            return self._ray.get(started)
        finally:
            with self._lock:
                self._running.discard(started)

    def _has_room(self) -> bool:
        """Whether a call fits on a node at all, be it busy or not."""
        needed = {"CPU": self.plan.cpus_per_worker, "GPU": self.plan.gpus_per_worker}
        return any(
            node["Alive"] and all(node["Resources"].get(name, 0) >= number for name, number in needed.items())
            for node in self._ray.nodes()
        )


class WithoutRoom:
    """How long the cluster has had no node to work on: says so now and then, and gives up after `timeout_s`."""

    def __init__(self, timeout_s: float, notify: Notify, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s, self.notify, self.clock = timeout_s, notify, clock
        self._since: float | None = None
        self._said = 0.0

    def check(self, has_room: bool) -> None:
        """Raises ClusterLostError if there has been no room for too long."""
        now = self.clock()
        if has_room:
            self._since = None
            return
        if self._since is None:
            self._since, self._said = now, now - SAY_EVERY_S
        waited = now - self._since
        if waited >= self.timeout_s:
            raise ClusterLostError(
                f"the cluster has had no node to work on for {waited:.0f} s (--cluster-timeout); "
                "the same command resumes when it has one"
            )
        if now - self._said >= SAY_EVERY_S:
            self._said = now
            self.notify(f"the cluster has no node to work on; waiting up to {self.timeout_s - waited:.0f} s more")
