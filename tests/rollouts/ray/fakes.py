"""Workers that play nothing: tests say what becomes of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bough.rollouts.collect import Attempt
from bough.rollouts.ray import Plan
from bough.rollouts.ray_pool import Place, WorkerLostError, WorkerPool
from bough.rollouts.ray_workers import Outcome
from bough.types import Message, Trajectory

NO_ROOM = ""


@dataclass(eq=False)
class FakeWorker:
    """On node `node`; if that is NO_ROOM, it never starts. Without `answers` a test ends its calls."""

    node: str = "a"
    refusals: dict[str, str] = field(default_factory=dict)  # by node
    dies_in_start: bool = False
    deadly: frozenset[str] = frozenset()
    answers: bool = True
    playing: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)
    weights: list[tuple[str, Any]] = field(default_factory=list)
    killed: bool = False
    closed: bool = False

    async def place(self) -> Place:
        if self.node == NO_ROOM:
            await asyncio.Event().wait()
        return Place(self.node, f"host-{self.node}", 1)

    async def start(self) -> str | None:
        await asyncio.sleep(0)
        if self.dies_in_start:
            raise WorkerLostError("no memory")
        return self.refusals.get(self.node)

    async def call(self, method: str, *given: Any) -> Any:
        return await getattr(self, method)(*given)

    async def play(self, attempt: Attempt, episode: str | None) -> Outcome:
        self.playing[attempt.id] = future = asyncio.get_running_loop().create_future()
        if self.killed or attempt.id in self.deadly:
            self.die()
        elif self.answers:
            self.finish(attempt)
        try:
            return await future
        finally:
            self.playing.pop(attempt.id, None)

    def finish(self, attempt: Attempt) -> None:
        self.playing[attempt.id].set_result(Outcome(record(attempt)))

    def die(self) -> None:
        """All its calls fail."""
        self.killed = True
        for future in self.playing.values():
            if not future.done():
                future.set_exception(WorkerLostError("ActorDiedError: killed"))

    async def renew(self, name: str, weights: Any) -> None:
        if self.killed:
            raise WorkerLostError("ActorDiedError: killed")
        self.weights.append((name, weights))

    async def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.killed = True


class Launcher:
    """Starts the workers that `make` returns, on `nodes` in turn; a worker for which there is no room never starts."""

    def __init__(self, make: Callable[[int], FakeWorker], nodes: str = "ab") -> None:
        self.make, self.nodes, self.made, self.said = make, set(nodes), list[FakeWorker](), list[str]()

    def __call__(self, left_out: frozenset[str]) -> FakeWorker:
        worker = self.make(len(self.made))
        if worker.node in left_out:
            worker.node = next(iter(sorted(self.nodes - left_out)), NO_ROOM)
        self.made.append(worker)
        return worker

    def pool(self, workers: int = 2, timeout_s: float = 60.0, room: int = 2) -> WorkerPool:
        """A pool of these workers. Each node has the resources for `room` of them."""
        return WorkerPool(
            self, Plan(workers, 1, 0, 4, workers), most=8, timeout_s=timeout_s,
            room=lambda: dict.fromkeys(self.nodes, room), say=self.said.append,
        )  # fmt: skip


def record(attempt: Attempt) -> Trajectory:
    return Trajectory(id=attempt.id, task=attempt.task, start=[Message(role="user", content="Hi")], turns=[])
