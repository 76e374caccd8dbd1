"""Calls on nodes: what is lost is called again, and for how long a cluster may be without nodes. Ray is a fake here."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bough.rollouts import ray_workers
from bough.rollouts.ray import ClusterLostError, Plan
from bough.rollouts.ray_workers import MAX_LOSSES, Tasks, WithoutRoom, WorkLostError

PLAN = Plan(workers=1, cpus_per_worker=1, gpus_per_worker=0, concurrency=1, room=1)


class RayError(Exception):
    pass


class NodeDiedError(RayError):
    pass


class RayTaskError(RayError):
    cause: Any = None


class TaskCancelledError(RayError):
    pass


@dataclass(eq=False)
class Started:
    error: RayError | None
    function: Callable[..., Any]
    given: tuple[Any, ...]


class FakeRay:
    """Every call has an outcome: an error of Ray's that is raised, or None, where the function is called."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError)

    def __init__(self, *outcomes: RayError | None) -> None:
        self.outcomes = iter(outcomes)
        self.asked: list[dict[str, Any]] = []

    def remote(self, **resources: Any) -> Callable[[Any], Any]:
        self.asked.append(resources)
        return lambda function: SimpleNamespace(remote=lambda *given: Started(next(self.outcomes), function, given))

    def wait(self, started: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return started, []

    def get(self, started: Any) -> Any:
        if started.error is not None:
            raise started.error
        return started.function(*started.given)


def with_ray(monkeypatch: pytest.MonkeyPatch, *outcomes: RayError | None) -> tuple[Tasks, FakeRay, list[str]]:
    ray, lines = FakeRay(*outcomes), list[str]()
    monkeypatch.setattr(ray_workers, "import_ray", lambda: ray)
    return Tasks(PLAN, 600, lines.append), ray, lines


def test_a_call_whose_node_died_is_made_again(monkeypatch: pytest.MonkeyPatch):
    calls, ray, lines = with_ray(monkeypatch, NodeDiedError(), NodeDiedError(), None)
    assert calls.call("the sum", sum, [1, 2, 3]) == 6
    assert calls.losses == 2 and lines == ["the sum: its worker was lost (NodeDied); starting it again"] * 2
    assert all(one["max_retries"] == 0 and one["num_cpus"] == 1 for one in ray.asked)


def test_a_call_that_loses_its_worker_every_time_fails(monkeypatch: pytest.MonkeyPatch):
    calls, _, _ = with_ray(monkeypatch, *[NodeDiedError() for _ in range(MAX_LOSSES)])
    with pytest.raises(WorkLostError, match="was lost 5 times"):
        calls.call("the sum", sum, [1])


def test_an_error_of_the_function_is_raised_and_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    error = RayTaskError("a long traceback")
    error.cause = ValueError("its own words")
    calls, ray, _ = with_ray(monkeypatch, error)
    with pytest.raises(ValueError, match=r"^its own words$"):
        calls.call("the sum", sum, [1])
    assert len(ray.asked) == 1 and calls.losses == 0


def test_nothing_is_started_after_a_stop(monkeypatch: pytest.MonkeyPatch):
    calls, _, _ = with_ray(monkeypatch, None)
    calls.stop()
    with pytest.raises(Exception, match="was stopped"):
        calls.call("the sum", sum, [1])


def test_a_cluster_without_nodes_is_said_every_half_minute_and_given_up_after_the_time_limit():
    now, lines = [0.0], list[str]()
    waiting = WithoutRoom(100, lines.append, clock=lambda: now[0])
    for second in range(0, 95, 5):
        now[0] = float(second)
        waiting.check(has_room=False)
    assert [line.rpartition("up to ")[2] for line in lines] == ["100 s more", "70 s more", "40 s more", "10 s more"]
    waiting.check(has_room=True)  # a node came back: the clock starts again
    for second in range(95, 195, 5):
        now[0] = float(second)
        waiting.check(has_room=False)
    now[0] = 195.0
    with pytest.raises(ClusterLostError, match="for 100 s"):
        waiting.check(has_room=False)
