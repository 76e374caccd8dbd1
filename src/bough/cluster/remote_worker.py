"""A worker as the driver sees it: an actor of Ray, whatever may happen to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from bough.cluster.connection import import_ray
from bough.cluster.plan import Plan
from bough.cluster.worker import Outcome, Surroundings, Worker
from bough.errors import BoughError, exception_text
from bough.rollouts.attempt import Attempt

# Calls beside episodes: a start, new weights, the end.
SPARE_CALLS = 8
MAX_REASON = 200


class WorkerLostError(BoughError):
    """A worker, its node or the connection to it is gone. That says nothing about what it was playing."""


class Place(NamedTuple):
    """Where a worker runs."""

    node: str
    host: str
    pid: int


class RemoteWorker(Protocol):
    """A worker in another process. Every call may raise WorkerLostError."""

    async def place(self) -> Place:
        """Waits until the process runs, which may take until the cluster has room."""

    async def start(self) -> str | None: ...

    async def play(self, attempt: Attempt, episode: str | None) -> Outcome: ...

    async def renew(self, name: str, weights: Any) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Ends the process without waiting; also one that is only out of reach."""


class _Actor(Worker):
    """The worker in its process."""

    async def place(self) -> Place:
        import ray

        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())


class RayWorker:
    """A worker that is an actor of Ray. It is not restarted and its calls are not repeated: the runner does both."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def place(self) -> Place:
        place: Place = await _answer(self._actor.place.remote)
        return place

    async def start(self) -> str | None:
        refusal: str | None = await _answer(self._actor.start.remote)
        return refusal

    async def play(self, attempt: Attempt, episode: str | None) -> Outcome:
        outcome: Outcome = await _answer(self._actor.play.remote, attempt, episode)
        return outcome

    async def renew(self, name: str, weights: Any) -> None:
        await _answer(self._actor.renew.remote, name, weights)

    async def close(self) -> None:
        await _answer(self._actor.close.remote)

    def kill(self) -> None:
        ray = import_ray()
        with suppress(ray.exceptions.RayError, ConnectionError, ValueError):
            ray.kill(self._actor, no_restart=True)


def launcher(packed: bytes, surroundings: Surroundings, plan: Plan) -> Callable[[frozenset[str]], RayWorker]:
    """Starts workers, on any node but those whose ids it is given."""
    ray = import_ray()
    remote = ray.remote(_Actor)
    options: dict[str, Any] = {
        "num_cpus": plan.cpus_per_worker,
        "num_gpus": plan.gpus_per_worker,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 2 * plan.concurrency + SPARE_CALLS,
    }
    packed_once = ray.put(packed)  # a whole module may be in it

    def launch(left_out: frozenset[str]) -> RayWorker:
        actor = remote.options(**options, scheduling_strategy=_anywhere_but(left_out))
        return RayWorker(actor.remote(packed_once, surroundings))

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
    except errors.RayTaskError:
        raise
    except (errors.RayError, ConnectionError) as error:
        raise _lost(error) from error


def _lost(error: BaseException) -> WorkerLostError:
    first = next((line.strip() for line in exception_text(error).splitlines() if line.strip()), "")
    return WorkerLostError(f"{type(error).__name__}: {first}"[:MAX_REASON])
