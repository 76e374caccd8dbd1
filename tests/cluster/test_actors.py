"""Objects in workers: replaced when they are lost, waited for while the cluster has room. Ray is a fake here."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bough.cluster import actors as module
from bough.cluster.actors import Actors
from bough.cluster.connection import ClusterLostError
from bough.cluster.plan import Plan

PLAN = Plan(workers=2, cpus_per_worker=1, gpus_per_worker=0, concurrency=1, room=2)


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class RayTaskError(RayError):
    cause: Any = None


@dataclass(eq=False)
class Started:
    work: Callable[[], Any]
    pending: bool = False


class FakeHost:
    """A worker that is `placed` as soon as it starts, is never placed, or dies while it starts."""

    def __init__(self, made: Any, fate: str) -> None:
        self.made, self.fate, self.dead = made, fate, fate == "dies"
        self.ready = SimpleNamespace(remote=lambda: Started(lambda: self.answer(lambda: True), self.fate == "waits"))
        self.call = SimpleNamespace(remote=lambda *given: Started(lambda: self.answer(lambda: self.made.call(*given))))

    def answer(self, work: Callable[[], Any]) -> Any:
        if self.dead:
            raise ActorDiedError
        try:
            return work()
        except Exception as error:
            wrapped = RayTaskError("a long traceback")
            wrapped.cause = error
            raise wrapped from error


class FakeRay:
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, fates: list[str]) -> None:
        self.fates, self.hosts = iter(fates), list[FakeHost]()

    def put(self, one: Any) -> Any:
        return one

    def remote(self, kind: type) -> Any:
        def make(*given: Any) -> FakeHost:
            self.hosts.append(FakeHost(kind(*given), next(self.fates)))
            return self.hosts[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def wait(self, started: list[Started], **_: Any) -> tuple[list[Started], list[Started]]:
        return [one for one in started if not one.pending], [one for one in started if one.pending]

    def get(self, started: Started) -> Any:
        return started.work()

    def kill(self, host: FakeHost) -> None:
        host.dead = True


class Count:
    """An object with a state."""

    def __init__(self, begin: int) -> None:
        self.value = begin

    def add(self, number: int) -> int:
        if number < 0:
            raise ValueError("only up")
        self.value += number
        return self.value


def started(
    monkeypatch: pytest.MonkeyPatch, fates: list[str], room: int = 2, timeout_s: float = 600
) -> tuple[Actors, FakeRay, list[str]]:
    ray, lines = FakeRay(fates), list[str]()
    monkeypatch.setattr(module, "import_ray", lambda: ray)
    actors = Actors(PLAN, Count, 10, threads=1, room=lambda: room, timeout_s=timeout_s, notify=lines.append)
    return actors, ray, lines


def test_every_worker_has_an_object_of_its_own(monkeypatch: pytest.MonkeyPatch):
    actors, _, _ = started(monkeypatch, ["placed", "placed"])
    one, other = actors.living()
    assert actors.gather({one: one.start("add", 1), other: other.start("add", 2)}) == {one: 11, other: 12}
    assert actors.gather({one: one.start("add", 5)}) == {one: 16} and actors.living() == [one, other]


def test_a_lost_worker_has_no_result_is_counted_once_and_replaced(monkeypatch: pytest.MonkeyPatch):
    actors, ray, lines = started(monkeypatch, ["placed"] * 3)
    one, other = actors.living()
    ray.hosts[0].dead = True
    for _ in range(2):
        assert actors.gather({one: one.start("add", 1)}) == {}
    assert actors.losses == 1
    assert lines == ["worker 1 of the cluster was lost (ActorDied); its work is done again"]
    assert [worker.number for worker in actors.living()] == [2, 3] and actors.living()[0] is other


def test_an_error_of_the_object_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch):
    actors, _, _ = started(monkeypatch, ["placed", "placed"])
    one, _ = actors.living()
    with pytest.raises(ValueError, match=r"^only up$"):
        actors.gather({one: one.start("add", -1)})
    assert actors.losses == 0


def test_work_begins_without_a_worker_for_which_there_is_no_room(monkeypatch: pytest.MonkeyPatch):
    actors, _, _ = started(monkeypatch, ["placed", "waits"], room=1)
    assert [worker.number for worker in actors.living()] == [1]


def test_workers_that_die_while_they_start_are_given_up(monkeypatch: pytest.MonkeyPatch):
    actors, _, _ = started(monkeypatch, ["dies"] * 20)
    with pytest.raises(ClusterLostError, match=r"workers die while they start, 7 in a row: worker 7 .* \(ActorDied\)"):
        actors.living()


def test_a_cluster_without_room_for_a_single_worker_is_given_up(monkeypatch: pytest.MonkeyPatch):
    actors, _, lines = started(monkeypatch, ["waits", "waits"], room=0, timeout_s=0.05)
    with pytest.raises(ClusterLostError, match="--cluster-timeout"):
        actors.living()
    assert len(lines) == 1 and "waiting up to" in lines[0]
