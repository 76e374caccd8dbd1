"""A connection to a Ray cluster, and what can go wrong with it in a sentence each."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bough.config.groups import ADDRESS, AUTO, ClusterConfig
from bough.errors import BoughError, InputError
from bough.ledger import plural
from bough.terminal import console

INSTALL = "pip install 'bough[ray]'"
# A head node that does not answer for this long is not there; Ray itself would wait for minutes.
REACH_S = 3.0
LOOPBACK = ("127.0.0.1:", "[::1]:")
# What makes Ray listen on the loopback address. It is meant for systems with a firewall that asks the user.
CLUSTERS_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class ClusterLostError(BoughError):
    """The cluster has not had a single worker for too long."""


@contextmanager
def connected(config: ClusterConfig) -> Iterator[None]:
    """Connects to the cluster of the settings and disconnects at the end. A connection that exists is used and kept."""
    assert config.address is not None
    ray = import_ray()
    if ray.is_initialized():
        here = str(ray.get_runtime_context().gcs_address)
        # A machine has several names, but one cluster has one port.
        if config.address not in (AUTO, here) and config.address.rpartition(":")[2] != here.rpartition(":")[2]:
            raise InputError(
                f"cluster {config.address}: this process is connected to the Ray cluster at {here}; "
                "call ray.shutdown() first"
            )
        yield
        return
    auto = config.address == AUTO
    console.announce("connecting to Ray, or starting it here" if auto else f"connecting to Ray at {config.address}")
    usual = signal.getsignal(signal.SIGTERM)
    _connect(ray, config.address)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, usual)  # Ray's handler only exits; a run in training saves a checkpoint first
    try:
        yield
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """Ray, or an InputError that says how to install it."""
    if "ray" not in sys.modules:  # where it prints on stdout, also with log_to_driver=False, that a node was lost
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise InputError(f"--cluster needs Ray: {INSTALL}") from None
    return ray


def nodes() -> list[dict[str, float]]:
    """The resources of the nodes that are alive."""
    return list(nodes_by_id().values())


def nodes_by_id() -> dict[str, dict[str, float]]:
    """The resources of the nodes that are alive, by the ids of the nodes."""
    return {node["NodeID"]: node["Resources"] for node in import_ray().nodes() if node["Alive"]}


def _connect(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    named = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    try:
        if ADDRESS.fullmatch(named):
            _reach(named)
        if named:
            ray.init(address=address, **quiet)
        elif (found := _cluster_here(ray)) is not None:
            ray.init(address=found, **quiet)
        else:
            start_here(ray, **quiet)
    except (ConnectionError, ValueError, OSError) as error:
        raise _no_answer(address, named or address, error) from error
    except RuntimeError as error:
        if "version mismatch" in str(error).lower():
            raise InputError(
                f"--cluster {address}: Ray or Python has another version there than here; install the same ones on "
                f"all machines ({_first_line(error)})"
            ) from error
        raise BoughError(f"--cluster {address}: Ray did not start ({_first_line(error)})") from error
    except ray.exceptions.AuthenticationError as error:
        raise InputError(
            f"--cluster {address}: the cluster asks for a token: set RAY_AUTH_MODE=token, and copy ~/.ray/auth_token "
            f"from its head node to this machine ({_first_line(error)})"
        ) from error


def check_address(address: str) -> None:
    """BoughError unless something listens at the address; `auto` is not checked."""
    if ADDRESS.fullmatch(address):
        try:
            _reach(address)
        except ConnectionError as error:
            raise _no_answer(address, address, error) from error


def _no_answer(address: str, named: str, error: Exception) -> BoughError:
    return BoughError(
        f"--cluster {address}: the Ray cluster at {named} does not answer; check that `ray status` "
        "works on this machine, with the head node's RAY_AUTH_MODE and ~/.ray/auth_token if the cluster asks for a "
        f"token ({_first_line(error)})"
    )


def _cluster_here(ray: Any) -> str | None:
    """The address of the cluster that this machine belongs to, for `ray.init`; None if it belongs to none.

    Ray's own search finds every Ray on this machine: also one that `start_here` made for another
    process and that ends with it, and those of this process that have ended.
    """
    services = ray._private.services
    services.find_gcs_addresses.cache_clear()
    found, written = services.find_gcs_addresses(), services.find_bootstrap_address(None)
    shared = {one for one in found if one == written or not one.startswith(LOOPBACK)}
    if not shared:
        return None
    if len(found) == 1:
        return AUTO  # with it Ray also finds the token
    return str(written if written in shared else min(shared))


def start_here(ray: Any, **options: Any) -> None:
    """Starts Ray on this machine alone. It sends no statistics, and no other machine can connect to it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    constants, before = ray._private.ray_constants, os.environ.get(CLUSTERS_VARIABLE)
    enabled = constants.ENABLE_RAY_CLUSTER  # what the variable was when Ray was imported; its processes read it again
    os.environ[CLUSTERS_VARIABLE], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        ray.init(address="local", num_cpus=num_cpus(), include_dashboard=False, **options)
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        if before is None:
            del os.environ[CLUSTERS_VARIABLE]
        else:
            os.environ[CLUSTERS_VARIABLE] = before


def _reach(address: str) -> None:
    """ConnectionError unless something listens at an address HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing listens there: {error}") from None


def num_cpus() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:4]) if lines else type(error).__name__


# How many workers a cluster has room for, and what each of them gets.

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


# The GPU that the driver trains on, taken from Ray so that no worker is put on it. Ray counts the GPUs of its nodes,
# and does not know of a driver that uses one of them.

# A GPU that Ray has not given after this long is used by others.
HOLD_S = 30.0


class _Holder:
    """An actor that only has a GPU."""

    def ready(self) -> None:
        pass


@contextmanager
def held_gpu(say: Callable[[str], None]) -> Iterator[float]:
    """Takes a GPU of this machine from Ray, the first that is free; yields how many it has."""
    ray = import_ray()
    node = ray.get_runtime_context().get_node_id()
    if not nodes_by_id().get(node, {}).get("GPU", 0):  # Ray has no GPU of this machine, so no worker is put on it
        yield 0.0
        return
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    holder = ray.remote(_Holder).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
    held = 1.0
    try:
        ray.get(holder.ready.remote(), timeout=HOLD_S)
    except ray.exceptions.RayError:
        held = 0.0
        say("training runs on a GPU of this machine that others use through Ray: `ray status` shows how much")
    try:
        yield held
    finally:
        ray.kill(holder)
