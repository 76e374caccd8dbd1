"""Ray with two GPUs, which need not exist: it only counts them."""

from collections.abc import Iterator
from typing import Any

import pytest

from bough.config.groups import ClusterConfig
from bough.rollouts.ray import held_gpu, import_ray
from tests.rollouts.ray.real.clusters import until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = import_ray()
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def ids(ray: Any, gpus: float) -> list[str]:
    """The GPUs of a process that asks for this many."""
    found = ray.remote(num_cpus=0, num_gpus=gpus)(lambda: ray.get_runtime_context().get_accelerator_ids()["GPU"])
    return list(ray.get(found.remote(), timeout=300))


@pytest.mark.parametrize("index", [0, 1])
def test_workers_do_not_get_the_gpu_of_the_driver(ray: Any, index: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with held_gpu(ClusterConfig(address="auto"), index, lambda _: None) as share:
        assert share == 1.0
        until(lambda: ray.available_resources().get("GPU") == 1.0)  # of the other, which was tried first
        assert ids(ray, 1) == [str(1 - index)]
    until(lambda: ray.available_resources().get("GPU") == 2.0)


def test_a_part_is_held_beside_workers(ray: Any):
    with held_gpu(ClusterConfig(address="auto", gpus_per_worker=0.5), 0, lambda _: None) as share:
        assert share == 0.5
        until(lambda: ray.available_resources().get("GPU") == 1.5)
        assert len(ids(ray, 0.5)) == 1
    until(lambda: ray.available_resources().get("GPU") == 2.0)
