"""Workers of a cluster as objects in this process, which die when a test wants it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from bough.rollouts.ray_pool import WorkerLostError


class FakeWorker:
    def __init__(self, number: int, made: Any) -> None:
        self.number, self.made, self.lost = number, made, asyncio.Event()


class FakeActors:
    """As `Actors`. `kill` is a method with the number of its call at which the worker dies; it is not replaced."""

    def __init__(self, count: int, make: Callable[[], Any], kill: tuple[str, int] | None = None) -> None:
        self.kill, self.losses, self.calls = kill, 0, list[str]()
        self.workers = [FakeWorker(number, make()) for number in range(1, count + 1)]

    def dies(self, method: str) -> bool:
        self.calls.append(method)
        return (method, self.calls.count(method)) == self.kill

    def living(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if not worker.lost.is_set()]

    def start(self, worker: FakeWorker, method: str, *given: Any) -> Callable[[], Any]:
        """The call, made when its result is asked for."""

        def call() -> Any:
            if self.dies(method):
                worker.lost.set()
            if worker.lost.is_set():
                self.losses += 1
                raise WorkerLostError(f"worker {worker.number} was lost")
            return getattr(worker.made, method)(*given)

        return call

    def gather(
        self, started: Mapping[FakeWorker, Callable[[], Any]], each: Callable[[], None] = lambda: None
    ) -> dict[FakeWorker, Any]:
        found = {}
        for worker, call in started.items():
            try:
                found[worker] = call()
            except WorkerLostError:
                continue
            each()
        return found

    async def result(self, started: Callable[[], Any]) -> Any:
        return started()

    def close(self) -> None:
        pass
