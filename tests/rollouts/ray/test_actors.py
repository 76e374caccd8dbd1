"""Workers of a pool as a driver without an event loop calls them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from bough.rollouts import ray_pool as pool_module
from bough.rollouts.ray_pool import Actors, WorkerLostError
from tests.rollouts.ray.fakes import NO_ROOM, FakeWorker, Launcher


@dataclass(eq=False)
class Adder(FakeWorker):
    sum: int = 10

    async def add(self, number: int) -> int:
        if self.killed:
            raise WorkerLostError("ActorDiedError: killed")
        if number < 0:
            raise ValueError("only up")
        self.sum += number
        return self.sum


@contextmanager
def started(
    make: Callable[[int], FakeWorker], nodes: str = "ab", timeout_s: float = 60.0
) -> Iterator[tuple[Actors, Launcher]]:
    launcher = Launcher(make, nodes)
    actors = Actors(launcher.pool(timeout_s=timeout_s, room=1))
    try:
        yield actors, launcher
    finally:
        actors.close()


# A wait that should have ended never does.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "POLL_S"):
        monkeypatch.setattr(pool_module, name, 0.0)
    monkeypatch.setattr(pool_module, "START_S", 1e9)


def on_both(number: int) -> Adder:
    return Adder("ab"[number % 2])


def test_every_worker_has_an_object_of_its_own():
    with started(on_both) as (actors, launcher):
        one, other = actors.living()
        assert actors.gather({one: actors.start(one, "add", 1), other: actors.start(other, "add", 2)}) == {
            one: 11,
            other: 12,
        }
        assert actors.gather({one: actors.start(one, "add", 5)}) == {one: 16} and actors.living() == [one, other]
    assert all(worker.closed and worker.killed for worker in launcher.made)


def test_a_lost_worker_has_no_result_is_counted_once_and_replaced():
    with started(on_both) as (actors, launcher):
        one, other = actors.living()
        launcher.made[0].die()
        for _ in range(2):
            assert actors.gather({one: actors.start(one, "add", 1), other: actors.start(other, "add", 0)}) == {
                other: 10
            }
        assert actors.losses == 1 and one.lost.is_set() and not other.lost.is_set()
        assert launcher.said == ["a worker on host-a was lost; its work is done elsewhere (ActorDiedError: killed)"]
        assert [worker.number for worker in actors.living()] == [2, 3] and actors.living()[0] is other


def test_an_error_of_the_object_is_raised_as_it_is():
    with started(on_both) as (actors, _):
        one, _ = actors.living()
        with pytest.raises(ValueError, match=r"^only up$"):
            actors.gather({one: actors.start(one, "add", -1)})
        assert actors.losses == 0


def test_work_begins_without_a_worker_for_which_there_is_no_room():
    with started(lambda number: Adder("a" if not number else NO_ROOM), nodes="a") as (actors, _):
        assert [worker.number for worker in actors.living()] == [1]


def test_work_begins_without_a_node_that_cannot_be_used():
    with started(lambda number: Adder(["a", "b", NO_ROOM][number], {"b": "no browser"})) as (actors, launcher):
        while len(launcher.made) < 3:  # the third one would start on another node
            time.sleep(0.001)
        (only,) = actors.living()
        assert actors.gather({only: actors.start(only, "add", 1)}) == {only: 11}
    assert launcher.said == ["host-b is left out: no browser"]


@dataclass(eq=False)
class Slow(Adder):
    async def start(self) -> str | None:
        for _ in range(100 if self.node == "b" else 1):
            await asyncio.sleep(0)
        return None


def test_a_worker_that_is_loading_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "START_S", 0.0)  # however long it takes
    with started(lambda number: Slow("ab"[number % 2])) as (actors, _):
        assert [worker.number for worker in actors.living()] == [1, 2]
