"""A connection to a Ray cluster, and what can go wrong with it in a sentence each."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bough.config.cluster import ADDRESS, AUTO, ClusterConfig
from bough.errors import BoughError, InputError
from bough.terminal import console
from bough.training.interrupts import REPLACED

INSTALL = "pip install 'bough[ray]'"
# A head node that does not answer for this long is not there; Ray itself would wait for minutes.
REACH_S = 3.0
UNIMPLEMENTED = 12  # gRPC's code for a server that has other services than the one asked for
LOOPBACK = ("127.0.0.1:", "[::1]:")
# What makes Ray listen on the loopback address. It is meant for systems with a firewall that asks the user.
CLUSTERS_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


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
        _check_same(config.address, str(ray.get_runtime_context().gcs_address))
        yield
        return
    auto = config.address == AUTO
    console.announce("connecting to Ray, or starting it here" if auto else f"connecting to Ray at {config.address}")
    usual = signal.getsignal(signal.SIGTERM)
    _connect(ray, config.address)
    try:
        with _exiting_by(signal.getsignal(signal.SIGTERM), usual):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _exiting_by(handler: Any, usual: Any) -> Iterator[None]:
    """Ray has put its handler of SIGTERM, which only exits, in place of the usual one.

    A run in training may replace it, to save a checkpoint first, and it ends with the connection.
    """
    if handler is usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    replaced = REPLACED[signal.SIGTERM]
    before = list(replaced)
    if usual in replaced:
        replaced.append(handler)
    try:
        yield
    finally:
        replaced[:] = before
        signal.signal(signal.SIGTERM, usual)


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
            _reach(ray, named)
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
    """BoughError unless a Ray cluster answers at the address; `auto` is not checked."""
    if ADDRESS.fullmatch(address):
        try:
            _reach(import_ray(), address)
        except ConnectionError as error:
            raise _no_answer(address, address, error) from error


def _no_answer(address: str, named: str, error: Exception) -> BoughError:
    return BoughError(
        f"--cluster {address}: the Ray cluster at {named} does not answer; check that `ray status` "
        f"works on this machine{_token_hint()} ({_first_line(error)})"
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


def _check_same(address: str, connected_to: str) -> None:
    """InputError if another cluster was asked for. A machine has several names, but one cluster has one port."""
    if address != AUTO and address.rpartition(":")[2] != connected_to.rpartition(":")[2]:
        raise InputError(
            f"cluster {address}: this process is connected to the Ray cluster at {connected_to}; "
            "call ray.shutdown() first"
        )


def _reach(ray: Any, address: str) -> None:
    """ConnectionError unless the head node of a Ray cluster answers at an address HOST:PORT.

    In a thread: looking up a name and Ray's own question have no time limit that could be set.
    """
    host, _, port = address.rpartition(":")
    problems: list[str] = []

    def ask() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
        except (OSError, OverflowError) as error:
            problems.append(f"nothing listens there: {error}")
            return
        try:
            ray._raylet.GcsClient(address=address)
        except Exception as error:  # all but this one, such as a missing token, is said better on connecting
            if getattr(error, "rpc_code", None) == UNIMPLEMENTED:
                problems.append("what listens there is not the head node of a Ray cluster")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(REACH_S)
    if problems or asking.is_alive():
        raise ConnectionError(problems[0] if problems else f"no answer in {REACH_S:g} s")


def _token_hint() -> str:
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return "; the token in ~/.ray/auth_token must be that of the head node"
    return "; if the cluster asks for a token, set RAY_AUTH_MODE=token"


def num_cpus() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:4]) if lines else type(error).__name__
