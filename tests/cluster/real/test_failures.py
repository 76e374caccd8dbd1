"""Workers, nodes and the driver die at random moments: the records are those of an undisturbed run in one process."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bough
from bough.cluster.connection import ClusterLostError
from tests.blocks import ROOT
from tests.cluster.real.clusters import TestCluster, wait_for

# How many times something is killed at a random moment.
KILLS = int(os.environ.get("BOUGH_KILLS", "3"))
SETTINGS = {"tasks": 20, "attempts": 2, "max_turns": 3, "max_new_tokens": 8, "concurrency": 4, "seed": 5}
FILE = "trajectories.jsonl"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    bough.collect("tiny", "household", output=folder, temperature=1.0, **SETTINGS)
    return (folder / FILE).read_bytes()


class Killer(threading.Thread):
    """Kills a worker or a whole node, `num_kills` times, each some time after another episode was recorded."""

    def __init__(self, cluster: TestCluster, file: Path, num_kills: int, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.cluster, self.file, self.num_kills, self.rng = cluster, file, num_kills, rng
        self.done = threading.Event()
        self.killed: list[str] = []

    def run(self) -> None:
        while len(self.killed) < self.num_kills and self._more_is_recorded():
            time.sleep(self.rng.uniform(0, 1))
            if self.rng.random() < 0.6:
                self.cluster.kill_worker(self.rng.choice)
                self.killed.append("worker")
            else:
                self.cluster.kill_node(self.rng.randrange(len(self.cluster.nodes)))
                self.killed.append("node")

    def _more_is_recorded(self) -> bool:
        before = recorded(self.file)
        while recorded(self.file) == before and not self.done.is_set():
            time.sleep(0.02)
        return not self.done.is_set()


def recorded(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_nothing_is_lost_or_doubled_or_changed(
    cluster: TestCluster, tmp_path: Path, undisturbed: bytes, capfd: pytest.CaptureFixture[str]
):
    rng, killed, losses, rounds = random.Random(KILLS), list[str](), 0, 0
    while len(killed) < KILLS:
        folder = tmp_path / str(rounds)
        killer = Killer(cluster, folder / FILE, KILLS - len(killed), rng)
        killer.start()
        found = bough.collect("tiny", "household", output=folder, temperature=1.0, cluster=cluster.address, **SETTINGS)
        killer.done.set()
        killer.join()
        assert (folder / FILE).read_bytes() == undisturbed
        assert (found.report["lost"], found.report["faults"]) == ({}, {})
        killed, losses, rounds = killed + killer.killed, losses + found.report["worker_losses"], rounds + 1
    with capfd.disabled():
        print(f"\nkilled {killed} in {rounds} collections, {losses} workers lost while they were ready")
    assert losses > 0
    said = capfd.readouterr()
    assert "was lost; its episodes are played elsewhere" in said.err
    assert "ray" not in said.out.lower()  # Ray's own lines would spoil --json


def test_a_killed_driver_resumes_with_what_is_missing(cluster: TestCluster, tmp_path: Path, undisturbed: bytes):
    folder = tmp_path / "collection"
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [
        *(sys.executable, "-m", "bough", "collect", "--model", "tiny", "--environment", "household", "--temperature"),
        *("1.0", "--output", str(folder), "--cluster", cluster.address, "--json", *flags),
    ]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    first = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: [1] * (recorded(folder / FILE) >= 5))
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = recorded(folder / FILE)
    assert before < 40
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["episodes_this_run"] == 40 - before
    assert f"{before} of 40 episodes are recorded; resuming" in again.stderr
    assert (folder / FILE).read_bytes() == undisturbed


@pytest.fixture
def emptied(cluster: TestCluster) -> Iterator[TestCluster]:
    while cluster.nodes:
        cluster.remove(0)
    yield cluster
    cluster.nodes = [cluster.add() for _ in range(2)]


def test_a_cluster_that_has_shrunk_to_nothing_is_an_error(emptied: TestCluster, tmp_path: Path):
    with pytest.raises(ClusterLostError, match=r"no worker for \d+ s \(--cluster-timeout\)"):
        bough.collect("expert", "household", tasks=2, cluster=emptied.address, cluster_timeout=1, output=tmp_path)


def test_a_cluster_that_has_shrunk_to_nothing_waits_for_a_node(emptied: TestCluster):
    threading.Timer(2.0, lambda: emptied.nodes.append(emptied.add())).start()
    assert len(bough.collect("expert", "household", tasks=2, cluster=emptied.address)) == 2
