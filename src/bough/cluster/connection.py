"""A connection to a Ray cluster, and what can go wrong with it in a sentence each."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bough.config.cluster import AUTO, ClusterConfig
from bough.errors import BoughError, InputError
from bough.terminal import console

INSTALL = "pip install 'bough[ray]'"
# How long a named head node may take to accept a connection.
ANSWER_S = 10.0


class ClusterLostError(BoughError):
    """The cluster has not had a single worker for too long."""


class StartsFailedError(ClusterLostError):
    """No worker survives its start."""

    def __init__(self, count: int, error: Exception) -> None:
        super().__init__(
            f"workers die while they start, {count} in a row: {error}. Often it is too little memory: lower --workers. "
            "Ray's logs say more, in /tmp/ray/session_latest/logs on the node"
        )


@contextmanager
def connected(config: ClusterConfig) -> Iterator[None]:
    """Connects to the cluster of the settings and disconnects at the end. A connection that exists is used and kept."""
    assert config.address is not None
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    auto = config.address == AUTO
    console.announce("connecting to Ray, or starting it here" if auto else f"connecting to Ray at {config.address}")
    _connect(ray, config.address)
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
    try:
        if address == AUTO:
            _connect_or_start(ray, quiet)
        else:
            _check_answers(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, OSError) as error:
        where = os.environ.get("RAY_ADDRESS") or address if address == AUTO else address
        raise BoughError(
            f"--cluster {address}: the Ray cluster at {where} does not answer; check that `ray status` works on this "
            f"machine ({_first_line(error)})"
        ) from error
    except RuntimeError as error:
        if "version mismatch" in str(error).lower():
            raise InputError(
                f"--cluster {address}: Ray or Python has another version there than here; install the same ones on "
                f"all machines ({_first_line(error)})"
            ) from error
        raise BoughError(f"--cluster {address}: Ray did not start ({_first_line(error)})") from error


def _connect_or_start(ray: Any, quiet: dict[str, Any]) -> None:
    """Connects to the cluster of RAY_ADDRESS or of `ray start`; if there is none, starts one on this machine.

    Ray's own `address="auto"` also finds a cluster that another command started for itself, which ends with it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    alone: dict[str, Any] = {"num_cpus": num_cpus(), "include_dashboard": False, **quiet}
    try:
        ray.init(**alone)
        return
    except ValueError:  # there is a cluster: its resources cannot be set
        pass
    try:
        ray.init(**quiet)
    except ConnectionError:
        if os.environ.get("RAY_ADDRESS"):  # a cluster was named and does not answer
            raise
        ray.init(address="local", **alone)


def _check_answers(address: str) -> None:
    """OSError if no program listens at the address: Ray itself tries for minutes before it says so."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()


def num_cpus() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:4]) if lines else type(error).__name__
