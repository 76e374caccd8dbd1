"""A worker as the driver sees it: an actor of Ray, whatever may happen to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from bough.cluster.connection import import_ray
from bough.cluster.plan import Plan
from bough.errors import BoughError, exception_text

MAX_REASON = 200


class WorkerLostError(BoughError):
    """A worker, its node or the connection to it is gone. That says nothing about its work."""


class Place(NamedTuple):
    """Where a worker runs."""

    node: str
    host: str
    pid: int


class Startable(Protocol):
    """What lives in the process of a worker: an object whose methods the driver calls."""

    def start(self) -> Any:
        """Gets ready; returns why it cannot work on this node, None if it can. It may be a coroutine."""

    def close(self) -> Any:
        """Releases what it holds. It may be a coroutine."""


class RemoteWorker(Protocol):
    """A worker in another process. Every call may raise WorkerLostError."""

    async def place(self) -> Place:
        """Waits until the process runs, which may take until the cluster has room."""

    async def start(self) -> str | None:
        """The result of the object's `start`."""

    async def call(self, method: str, *given: Any) -> Any:
        """The result of a method of the object. Raises what the method raises."""

    def kill(self) -> None:
        """Ends the process without waiting; also one that is only out of reach."""


class _Located:
    """Part of every actor."""

    def place(self) -> Place:
        import ray

        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())


class RayWorker:
    """A worker that is an actor of Ray. It is not restarted and its calls are not repeated: its user does both."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def place(self) -> Place:
        place: Place = await self.call("place")
        return place

    async def start(self) -> str | None:
        refusal: str | None = await self.call("start")
        return refusal

    async def call(self, method: str, *given: Any) -> Any:
        return await _answer(getattr(self._actor, method).remote, *given)

    def kill(self) -> None:
        ray = import_ray()
        with suppress(ray.exceptions.RayError, ConnectionError, ValueError):
            ray.kill(self._actor, no_restart=True)


def launcher(
    made: type[Startable], given: Sequence[Any], plan: Plan, max_calls: int
) -> Callable[[frozenset[str]], RayWorker]:
    """Starts workers that hold `made(*given)`, on any node but those whose ids it is given.

    A worker answers up to `max_calls` calls at the same time.
    """
    ray = import_ray()
    remote = ray.remote(type(made.__name__, (_Located, made), {}))
    options: dict[str, Any] = {
        "num_cpus": plan.cpus_per_worker,
        "num_gpus": plan.gpus_per_worker,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": max_calls,
    }
    stored = [ray.put(one) for one in given]  # once for all workers: a whole module or data set may be in it

    def launch(left_out: frozenset[str]) -> RayWorker:
        actor = remote.options(**options, scheduling_strategy=_anywhere_but(left_out))
        return RayWorker(actor.remote(*stored))

    return launch


def _anywhere_but(nodes: frozenset[str]) -> Any:
    if not nodes:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    return NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*sorted(nodes))})  # type: ignore[no-untyped-call]


async def _answer(call: Callable[..., Any], *given: Any) -> Any:
    """What an actor answers. All errors of Ray mean that it is lost, except those that its own code has raised."""
    errors = import_ray().exceptions
    try:
        reference = call(*given)
    except (errors.RayError, ConnectionError) as error:
        raise _lost(error) from error
    try:
        return await reference
    except asyncio.CancelledError:
        with suppress(errors.RayError, ConnectionError):
            import_ray().cancel(reference)
        raise
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else BoughError(str(error)) from error
    except (errors.RayError, ConnectionError) as error:
        raise _lost(error) from error


def _lost(error: BaseException) -> WorkerLostError:
    first = next((line.strip() for line in exception_text(error).splitlines() if line.strip()), "")
    return WorkerLostError(f"{type(error).__name__}: {first}"[:MAX_REASON])
