"""Workers on one GPU: with parts of a population, and beside a driver that trains on it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bough.experiments.evolve import evolve
from bough.methods.grpo import train_grpo
from tests.experiments.small import config
from tests.online.test_online import metrics, settings
from tests.rollouts.ray.real.clusters import started

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_two_workers_share_a_gpu_and_the_driver_uses_none(tmp_path: Path):
    lines: list[str] = []
    with started(1, cpus=2, gpus=1) as cluster:
        settings: dict[str, Any] = {"cluster": cluster.address, "gpus_per_worker": 0.5, "generations": 2}
        found = evolve(config(tmp_path, **settings), notify=lines.append)
    assert lines[0] == "cluster of 2 nodes, 2 CPUs and 1 GPU: 4 members on 2 workers, which load the model first"
    assert found.report["worker_losses"] == 0 and found.report["updates"] == 2 * 2 * 4
    assert len(found.lineage) == 8 and (found.weights / "adapter_model.safetensors").exists()
    assert torch.cuda.memory_allocated() == 0


def test_a_worker_without_gpus_sees_none():
    from bough.rollouts.ray_workers import Surroundings

    def sees(surroundings: Surroundings) -> bool:
        import torch

        surroundings.enter()
        return torch.cuda.is_available()

    with started(1, cpus=2, gpus=1) as cluster:
        import ray

        ray.init(address=cluster.address)
        found = [
            ray.get(ray.remote(num_gpus=gpus)(sees).remote(Surroundings.here(gpus=gpus))) for gpus in (0.0, 0.5, 1.0)
        ]
    assert found == [False, True, True]


def test_a_driver_trains_on_the_gpu_that_a_worker_plays_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    import ray

    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        train_grpo(settings(tmp_path, cluster="auto", gpus_per_worker=0.5, max_steps=2))
    finally:
        ray.shutdown()
    said = capfd.readouterr().err
    assert "training runs on GPU 0 of this machine beside workers, and counts as 0.5 GPUs" in said
    assert "1 worker with 1 CPU and 0.5 GPUs" in said
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]
