"""Workers, nodes and the driver die at random moments: the records are those of an undisturbed run in one process."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.rollouts.ray import ClusterLostError
from tests.blocks import ROOT
from tests.rollouts.ray.real.clusters import TestCluster

# How many times something is killed at a random moment.
KILLS = int(os.environ.get("BOUGH_KILLS", "3"))
SETTINGS = {"tasks": 20, "attempts": 2, "max_turns": 3, "max_new_tokens": 8, "concurrency": 4, "seed": 5}
FILE = "trajectories.jsonl"
# Each kill costs the start of a worker, which takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600 + 120 * KILLS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    bough.collect("tiny", "household", output=folder, temperature=1.0, **SETTINGS)
    return (folder / FILE).read_bytes()


def recorded(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill_while(collecting: Future[Any], cluster: TestCluster, file: Path, most: int, rng: random.Random) -> list[str]:
    """Kills a worker or a whole node up to `most` times, each some time after one more episode was recorded."""
    killed: list[str] = []
    while len(killed) < most:
        before = recorded(file)
        while recorded(file) == before:
            if collecting.done():
                return killed
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1))
        if rng.random() < 0.6:
            if cluster.workers():
                cluster.kill_worker(rng.choice)
                killed.append("worker")
        else:
            cluster.kill_node(rng.randrange(len(cluster.nodes)))
            killed.append("node")
    return killed


def test_nothing_is_lost_or_doubled_or_changed(
    cluster: TestCluster, tmp_path: Path, undisturbed: bytes, capfd: pytest.CaptureFixture[str]
):
    rng, killed, losses, rounds = random.Random(KILLS), list[str](), 0, 0
    while len(killed) < KILLS:
        folder = tmp_path / str(rounds)
        with ThreadPoolExecutor(1) as thread:  # Ray starts nodes in the main thread only
            collecting = thread.submit(
                bough.collect, "tiny", "household",
                output=folder, temperature=1.0, cluster=cluster.address, **SETTINGS,
            )  # fmt: skip
            killed += kill_while(collecting, cluster, folder / FILE, KILLS - len(killed), rng)
            found = collecting.result()
        with capfd.disabled():
            print(f"\nkilled so far: {killed}", flush=True)
        assert (folder / FILE).read_bytes() == undisturbed
        assert (found.report["lost"], found.report["faults"]) == ({}, {})
        losses, rounds = losses + found.report["worker_losses"], rounds + 1
    said = capfd.readouterr()
    with capfd.disabled():
        print(f"\nkilled {killed} in {rounds} collections, {losses} workers lost while they were ready")
    assert losses > 0
    assert "was lost; its work is done elsewhere" in said.err
    assert said.out == ""  # Ray's own lines would spoil --json


def test_a_killed_driver_resumes_with_what_is_missing(cluster: TestCluster, tmp_path: Path, undisturbed: bytes):
    folder = tmp_path / "collection"
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [
        *(sys.executable, "-m", "bough", "collect", "--model", "tiny", "--environment", "household", "--temperature"),
        *("1.0", "--output", str(folder), "--cluster", cluster.address, "--json", *flags),
    ]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    with (tmp_path / "said").open("w") as said:
        first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=said)
    while recorded(folder / FILE) < 5:
        assert first.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = recorded(folder / FILE)
    assert before < 40
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["episodes_this_run"] == 40 - before
    assert f"{before} of 40 episodes are recorded; resuming" in again.stderr
    assert (folder / FILE).read_bytes() == undisturbed


@pytest.fixture
def emptied(breakable: TestCluster) -> TestCluster:
    while breakable.nodes:
        breakable.remove(0)
    return breakable


def test_a_cluster_that_has_shrunk_to_nothing_is_an_error(emptied: TestCluster, tmp_path: Path):
    with pytest.raises(ClusterLostError, match=r"no worker for \d+ s \(--cluster-timeout\)"):
        bough.collect("expert", "household", tasks=2, cluster=emptied.address, cluster_timeout=1, output=tmp_path)


def test_a_cluster_that_has_shrunk_to_nothing_waits_for_a_node(emptied: TestCluster):
    with ThreadPoolExecutor(1) as thread:
        collecting = thread.submit(bough.collect, "expert", "household", tasks=2, cluster=emptied.address)
        emptied.add()
        assert len(collecting.result()) == 2
