"""Workers of a cluster as objects in this process, which die when a test wants it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bough.rollouts.ray_pool import WorkerLostError


@dataclass(eq=False)
class Call:
    actor: "FakeActor"
    method: str
    given: tuple[Any, ...]

    def result(self) -> Any:
        if self.actor.actors.dies(self.method):
            self.actor.lost = True
        if self.actor.lost:
            self.actor.actors.losses += 1
            raise WorkerLostError(f"worker {self.actor.number} was lost")
        return getattr(self.actor.made, self.method)(*self.given)


class FakeActor:
    def __init__(self, actors: "FakeActors", number: int, made: Any) -> None:
        self.actors, self.number, self.made, self.lost = actors, number, made, False

    def start(self, method: str, *given: Any) -> Call:
        return Call(self, method, given)


class FakeActors:
    """As `Actors`. `kill` is a method with the number of its call at which the worker dies; it is not replaced."""

    def __init__(self, count: int, make: Callable[[], Any], kill: tuple[str, int] | None = None) -> None:
        self.kill, self.losses, self.calls = kill, 0, list[str]()
        self.actors = [FakeActor(self, number, make()) for number in range(1, count + 1)]

    def dies(self, method: str) -> bool:
        self.calls.append(method)
        return (method, self.calls.count(method)) == self.kill

    def living(self) -> list[FakeActor]:
        return [actor for actor in self.actors if not actor.lost]

    def gather(
        self, started: Mapping[FakeActor, Call], each: Callable[[], None] = lambda: None
    ) -> dict[FakeActor, Any]:
        found = {}
        for actor, call in started.items():
            try:
                found[actor] = call.result()
            except WorkerLostError:
                continue
            each()
        return found

    async def result(self, started: Call) -> Any:
        return started.result()

    def close(self) -> None:
        pass
