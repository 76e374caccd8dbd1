"""What the driver gets of its GPU. Ray is a fake here."""

from types import SimpleNamespace
from typing import Any

import pytest

from bough.config.groups import ClusterConfig
from bough.rollouts import ray as driver_gpu
from bough.rollouts.ray import driver_share, held_gpu


def config(**settings: Any) -> ClusterConfig:
    return ClusterConfig(address="auto", **settings)


@pytest.mark.parametrize(
    ("settings", "gpus", "share"),
    [
        ({}, 1, 1.0),
        ({"gpus_per_worker": 0}, 1, 1.0),
        ({"gpus_per_worker": 0.25}, 1, 0.25),
        ({"gpus_per_worker": 0.25, "workers": 3}, 1, 0.25),
        ({"gpus_per_worker": 0.25, "workers": 4}, 1, 0.0),
        ({"gpus_per_worker": 1}, 2, 1.0),
        ({"gpus_per_worker": 1}, 1, 0.0),
        ({"gpus_per_worker": 2, "workers": 3}, 7, 1.0),
        ({"gpus_per_worker": 2, "workers": 3}, 6, 0.0),
    ],
)
def test_the_driver_gets_what_a_worker_gets_as_far_as_it_is_left(settings: dict[str, Any], gpus: int, share: float):
    assert driver_share(config(**settings), gpus) == share


class FakeActor:
    """Has the GPU with this number; none, where others use it."""

    def __init__(self, gpu: int | None) -> None:
        self.gpu, self.killed = gpu, False
        self.gpus = SimpleNamespace(remote=lambda: self)


class FakeRay:
    """A driver on node `here`. Actors get the GPUs 0, 1, … in turn, as many as are free."""

    class exceptions:  # noqa: N801
        RayError = ValueError

    def __init__(self, free: int) -> None:
        self.free, self.made, self.options = free, list[FakeActor](), list[dict[str, Any]]()
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
        self.util = SimpleNamespace(scheduling_strategies=strategies)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, _: type) -> Any:
        def options(**given: Any) -> Any:
            self.options.append(given)
            return SimpleNamespace(remote=self.start)

        return SimpleNamespace(options=options)

    def start(self) -> FakeActor:
        number = len(self.made)
        self.made.append(FakeActor(number if number < self.free else None))
        return self.made[-1]

    def get(self, actor: FakeActor, timeout: float) -> list[str]:
        if actor.gpu is None:
            raise self.exceptions.RayError
        return [str(actor.gpu)]

    def kill(self, actor: FakeActor) -> None:
        actor.killed = True


def held(monkeypatch: pytest.MonkeyPatch, *, here: int, free: int = 9, index: int = 0, **settings: Any):
    """What the driver got, Ray after it was held and at the end, and what was said."""
    ray, lines = FakeRay(free), list[str]()
    monkeypatch.setattr(driver_gpu, "import_ray", lambda: ray)
    monkeypatch.setattr(driver_gpu, "nodes_by_id", lambda: {"here": {"GPU": here}, "there": {"GPU": 4.0}})
    with held_gpu(config(**settings), index, lines.append) as share:
        kept = [actor.gpu for actor in ray.made if not actor.killed]
    assert all(actor.killed for actor in ray.made)
    return share, kept, lines


@pytest.fixture(autouse=True)
def _all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_gpu_that_the_driver_uses_is_the_one_that_is_held(monkeypatch: pytest.MonkeyPatch):
    said = "training runs on GPU 2 of this machine; workers use other GPUs, or CPUs"
    assert held(monkeypatch, here=4, index=2) == (1.0, [2], [said])
    said = "training runs on GPU 0 of this machine beside workers, and counts as 0.5 GPUs"
    assert held(monkeypatch, here=1, gpus_per_worker=0.5) == (0.5, [0], [said])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert held(monkeypatch, here=4, index=1)[:2] == (1.0, [1]), "the one of that name"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937")
    assert held(monkeypatch, here=2)[:2] == (1.0, [0]), "any, where names cannot be compared"


def test_a_gpu_that_cannot_be_held_is_said(monkeypatch: pytest.MonkeyPatch):
    assert held(monkeypatch, here=0) == (0.0, [], []), "Ray has no GPU of this machine"
    share, kept, lines = held(monkeypatch, here=1, gpus_per_worker=1, workers=5)
    assert (share, kept) == (0.0, []) and "which Ray also gives to workers: they need all GPUs" in lines[0]
    share, kept, lines = held(monkeypatch, here=1, free=0)
    assert (share, kept) == (1.0, []) and "which others use through Ray" in lines[0]
