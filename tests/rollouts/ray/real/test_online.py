"""Online training with its episodes on a cluster of two nodes, whose workers and driver are killed in between."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bough.methods.distill import DistillConfig, train_distill
from bough.methods.grpo import train_grpo
from bough.online.cluster import VersionedRunner
from bough.rollouts.collect import Attempt, Images
from bough.rollouts.ray_pool import Place
from bough.types import Trajectory
from tests.online.killed_stream import COMMON, Episodes, check, finished, learnt
from tests.online.test_online import batch, metrics, settings
from tests.online.test_streaming import UNEVEN, calls_of, files, first_step, unclocked
from tests.rollouts.ray.real.clusters import TestCluster

# Workers load torch and a model, which takes long where other tests run too.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CORRIDOR = "tests.online.letters:Corridor"
TREE = Path(__file__).parents[4]


@pytest.fixture
def address(cluster: TestCluster) -> str:
    return cluster.address


def kill_process(place: Place) -> None:
    os.kill(place.pid, signal.SIGKILL)


class Killer:
    """Kills a worker that is ready when this many episodes have come back, and counts episodes in flight.

    Episodes begin when both workers are ready. The next one is killed when the loss of the last is known.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        after: Sequence[int],
        kills: Sequence[Callable[[Place], None]] = (kill_process, kill_process),
    ) -> None:
        self.kills, self.num_back, self.num_killed = list(zip(after, kills, strict=False)), 0, 0
        self.in_flight = self.most_in_flight = 0
        self.began = False
        play = VersionedRunner.play

        async def watched(
            runner: VersionedRunner, attempt: Attempt, *, episode: str | None = None
        ) -> tuple[Trajectory, Images]:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await self.both_ready(runner)
                return await play(runner, attempt, episode=episode)
            finally:
                self.in_flight -= 1
                self.back(runner)

        monkeypatch.setattr(VersionedRunner, "play", watched)

    async def both_ready(self, runner: VersionedRunner) -> None:
        while not self.began:
            self.began = len(runner._runner.places) == 2  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)

    def back(self, runner: VersionedRunner) -> None:
        self.num_back += 1
        workers: Any = runner._runner
        due = self.num_killed < len(self.kills) and self.num_back >= self.kills[self.num_killed][0]
        if due and workers.places and workers.worker_losses == self.num_killed:
            self.kills[self.num_killed][1](random.choice(workers.places))
            self.num_killed += 1


def without_losses(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "worker_losses"} for line in lines]


@pytest.mark.bit_exact
def test_fresh_weights_end_in_the_bits_of_one_process_though_a_worker_and_a_node_die(
    breakable: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    more = {"environment": UNEVEN, "batch_size": 3, "max_steps": 3, "group_size": 3, "eval_every": 2, "eval_tasks": 4}
    here = train_grpo(settings(tmp_path / "here", **more))

    def kill_node(place: Place) -> None:
        breakable.remove(breakable.number_of(place.node), wait=True)

    killer = Killer(monkeypatch, after=[5, 14], kills=[kill_process, kill_node])
    there = train_grpo(settings(tmp_path / "there", cluster=breakable.address, workers=2, **more))
    assert killer.num_killed == 2 and len(breakable.nodes) == 1
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert there.ledgers == here.ledgers
    assert metrics(tmp_path / "there")[-1]["worker_losses"] == 2
    assert without_losses(unclocked(tmp_path / "there")) == unclocked(tmp_path / "here")
    assert {call.policy for number in range(3) for call in calls_of(tmp_path / "there", number)} == {
        "step-0", "step-1", "step-2",
    }  # fmt: skip


@pytest.mark.bit_exact
def test_distillation_of_all_weights_ends_in_the_bits_of_one_process(address: str, tmp_path: Path):
    def config(folder: Path, **more: Any) -> DistillConfig:
        values: dict[str, Any] = {
            "model": "tiny", "teacher": "tiny", "environment": UNEVEN, "output_dir": folder, "max_steps": 2,
            "batch_size": 3, "max_new_tokens": 8, "learning_rate": 1e-3, "use_lora": False, "watch": False,
        }  # fmt: skip
        return DistillConfig(**{**values, **more})

    for folder, more in ((tmp_path / "here", {}), (tmp_path / "there", {"cluster": address, "workers": 2})):
        train_distill(config(folder, **more))
    for name in ("rollouts/00000.jsonl", "rollouts/00001.jsonl", "final/model.safetensors"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


@pytest.mark.parametrize("swaps", [False, True])
def test_batches_are_played_ahead_within_the_bound_though_workers_die(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
):
    killer = Killer(monkeypatch, after=[] if swaps else [6, 30])
    more = {"environment": CORRIDOR, "cluster": address, "workers": 2, "max_staleness": 1}
    train_grpo(settings(tmp_path, max_steps=5, concurrency=64, swap_mid_episode=swaps, **more))
    assert killer.num_killed == (0 if swaps else 2)
    assert killer.most_in_flight <= 16, "a batch and the one after it, whatever the workers have room for"
    numbers = [group.info["number"] for number in range(5) for group in batch(tmp_path, number)]
    assert len(numbers) == len(set(numbers)) == 10
    ages = {number - first_step(call) for number in range(5) for call in calls_of(tmp_path, number)}
    assert ages <= {0, 1} and 1 in ages
    assert all(line["logprob_gap_max"] < 0.5 for line in metrics(tmp_path))
    if not swaps:
        for group in (group for number in range(5) for group in batch(tmp_path, number)):
            for attempt in group.attempts:
                assert len({turn.call.policy for turn in attempt.turns if turn.call}) == 1, "one version per episode"


def test_a_driver_that_was_killed_resumes_with_every_finished_episode(address: str, tmp_path: Path):
    folder, errors, noted = tmp_path / "run", tmp_path / "errors.txt", Episodes()
    common = [CORRIDOR if word == UNEVEN else word for word in COMMON]  # nearly every group teaches something
    command = [sys.executable, "-m", "bough", *common, "--max-staleness", "1", "--output-dir", str(folder)]
    command += ["--cluster", address, "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": f"{TREE / 'src'}{os.pathsep}{TREE}"}

    def start() -> subprocess.Popen[bytes]:
        with errors.open("wb") as file:  # no pipe: Ray's processes may keep one open
            return subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    process = start()
    while len(finished(folder) | learnt(folder)[1]) < 12 and process.poll() is None:
        time.sleep(0.2)
    process.kill()
    assert process.wait() == -signal.SIGKILL, errors.read_text()
    noted |= finished(folder)
    check(folder, noted)
    assert start().wait() == 0, errors.read_text()
    assert noted and check(folder, noted) > 0
