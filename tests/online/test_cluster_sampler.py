"""The driver's side of online training on a cluster, without Ray."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.methods.grpo import train_grpo
from bough.online import cluster
from bough.online.cluster import ClusterSampler, VersionedAttempt, VersionedRunner
from bough.online.samplers import Meter
from bough.rollouts.ray import ClusterLostError
from bough.rollouts.ray_weights import Publisher
from bough.rollouts.runner import Attempt, Images, LocalRunner
from bough.training.checkpoint import checkpoints
from bough.training.plan import PausedError
from bough.types import Message, Task, Trajectory
from tests.online.letters import Letters
from tests.online.test_online import settings
from tests.rollouts.ray.test_weights import Shelf

ATTEMPT = Attempt("a#0", Task(id="a"), 7, temperature=0.5)


class Recorder:
    """A runner that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Attempt, str | None]] = []

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        self.given.append((attempt, episode))
        start = [Message(role="user", content="Begin.")]
        return Trajectory(id=attempt.id, task=attempt.task, start=start, turns=[], info={"completion_tokens": 30}), []


def test_an_attempt_is_handed_out_with_the_version_that_is_the_newest_then():
    recorder, publisher = Recorder(), Publisher(2, Shelf())
    runner = VersionedRunner(recorder, publisher, Meter())
    versions = []
    for step in range(3):
        versions.append(publisher.publish(f"step-{step}", {"a": torch.ones(step)}))
        asyncio.run(runner.play(ATTEMPT, episode=f"{step}/a#0"))
    expected = [VersionedAttempt("a#0", ATTEMPT.task, 7, None, 0.5, version) for version in versions]
    assert recorder.given == [(attempt, f"{step}/a#0") for step, attempt in enumerate(expected)]


def test_tokens_that_workers_sampled_are_metered():
    clock = iter(range(100))
    publisher, meter = Publisher(2, Shelf()), Meter(lambda: float(next(clock)))
    publisher.publish("step-0", {})
    asyncio.run(VersionedRunner(Recorder(), publisher, meter).play(ATTEMPT))
    lap = meter.lap()
    assert lap["sampled_tokens_per_s"] == 30 / lap["batch_seconds"] and lap["sampling_share"] > 0


def test_vllm_is_refused_before_anything_is_started(tmp_path: Path):
    none: Any = None
    with pytest.raises(InputError, match="--engine vllm does not go with --cluster"):
        ClusterSampler(settings(tmp_path, cluster="auto", engine="vllm"), none, Letters, none)


@pytest.mark.parametrize(
    ("device", "learners", "reserved", "driver_gpu"),
    [("cpu", 1, 0, None), ("cuda", 1, 0, 0), ("cuda:1", 1, 0, 1), ("cuda:0", 2, 2, None)],
)
def test_the_gpu_that_this_process_trains_on_is_not_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, learners: int, reserved: int, driver_gpu: int | None
):
    given: dict[str, Any] = {}

    @asynccontextmanager
    async def noted(*_: Any, **settings: Any) -> AsyncIterator[None]:
        given.update(settings)
        yield

    monkeypatch.setattr(cluster, "cluster_runner", noted)
    monkeypatch.setattr(cluster, "Publisher", lambda **_: None)
    monkeypatch.setattr(cluster.PolicyAgents, "of", lambda *_: None)
    policy: Any = SimpleNamespace(device=torch.device(device))
    with closing(BackgroundLoop()) as loop:
        ClusterSampler(settings(tmp_path, cluster="auto", learners=learners), policy, Letters, loop)
    assert (given["reserved_gpus"], given["driver_gpu"]) == (reserved, driver_gpu)


def test_a_cluster_that_is_gone_pauses_the_run_with_its_weights_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    play = LocalRunner.play
    num_played = 0

    async def lost(self: LocalRunner, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        nonlocal num_played
        num_played += 1
        if num_played > 8:  # a batch of 2 groups of 4
            raise ClusterLostError("the cluster has had no worker for 600 s")
        return await play(self, attempt, episode=episode)

    monkeypatch.setattr(LocalRunner, "play", lost)
    with pytest.raises(
        PausedError, match="batch 1 cannot be played: the cluster has had no worker for 600 s; the weig"
    ):
        train_grpo(settings(tmp_path, max_steps=2, save_steps=9))
    assert [one.step for one in checkpoints(tmp_path / "checkpoints")] == [1]
