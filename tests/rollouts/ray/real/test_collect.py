"""`bough collect` and `bough eval` on two nodes: the same records as in one process."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.config.groups import ClusterConfig
from bough.errors import BoughError, InputError
from bough.rollouts import ray_workers
from bough.rollouts.collect import Attempt
from bough.rollouts.ray import connected
from bough.rollouts.ray_pool import ReadyWorker, WorkerPool
from tests.blocks import ROOT
from tests.rollouts.ray.real.clusters import TestCluster
from tests.rollouts.ray.worlds import Echo, NeedsFile

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # workers start slowly on a busy machine
SETTINGS = {"tasks": 5, "attempts": 2, "max_turns": 2, "max_new_tokens": 6, "temperature": 1.0, "seed": 3}
IN_MAIN = """
import sys
import bough

class Greet(bough.Environment):
    name = "greet"
    def start(self):
        return "Say hello."
    def step(self, reply):
        return bough.Observation.end(success=reply == "hello")
    def expert(self):
        return "hello"
    @classmethod
    def tasks(cls, options, *, split="train", seed=0):
        return [bough.Task(id=str(number)) for number in range(3)]

found = bough.collect("expert", Greet, tasks=3, cluster=sys.argv[1])
print([record.success for record in found])
"""


def test_the_files_are_those_of_one_process(cluster: TestCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    alone = bough.collect("tiny", "household", output=tmp_path / "alone", **SETTINGS)
    spread = bough.collect("tiny", "household", output=tmp_path / "spread", cluster=cluster.address, **SETTINGS)
    files = [(tmp_path / name / "trajectories.jsonl").read_bytes() for name in ("alone", "spread")]
    assert files[0] == files[1] and len(alone) == len(spread) == 10
    assert spread.report["worker_losses"] == 0 and "worker_losses" not in alone.report
    assert "logprob_gap_max" in alone.report and "logprob_gap_max" not in spread.report
    said = capfd.readouterr().err
    assert "cluster of 3 nodes, 2 CPUs and 0 GPUs: 2 workers with 1 CPU" in said
    assert "raylet" not in said and "INFO" not in said, "Ray's own lines"


def test_three_workers_that_all_play_write_the_same_files(
    breakable: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    play, call, played_on = ray_workers.ClusterRunner.play, WorkerPool.call, set[int]()

    async def play_when_all_are_ready(self: ray_workers.ClusterRunner, attempt: Attempt, **more: Any) -> Any:
        while len(self.places) < 3:  # else the first one could be done before the others are ready
            await asyncio.sleep(0.05)
        return await play(self, attempt, **more)

    async def noted(self: WorkerPool, worker: ReadyWorker, method: str, *given: Any) -> Any:
        played_on.add(worker.number)
        return await call(self, worker, method, *given)

    bough.collect("tiny", "household", output=tmp_path / "alone", **SETTINGS)
    monkeypatch.setattr(ray_workers.ClusterRunner, "play", play_when_all_are_ready)
    monkeypatch.setattr(WorkerPool, "call", noted)
    breakable.add()
    bough.collect("tiny", "household", output=tmp_path / "spread", cluster=breakable.address, **SETTINGS)
    assert played_on == {1, 2, 3}
    files = [(tmp_path / name / "trajectories.jsonl").read_bytes() for name in ("alone", "spread")]
    assert files[0] == files[1]


def test_a_class_of_the_main_program_is_played(cluster: TestCluster, tmp_path: Path):
    (tmp_path / "main.py").write_text(IN_MAIN)
    command = [sys.executable, "main.py", cluster.address]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout == "[True, True, True]\n", done.stderr


def test_models_are_compared_as_in_one_process(cluster: TestCluster):
    settings = {"tasks": 6, "max_turns": 4}
    alone = bough.evaluate(["expert", "random"], "household", **settings)
    spread = bough.evaluate(["expert", "random"], "household", cluster=cluster.address, **settings)
    assert spread.results.model_dump() == alone.results.model_dump()


def test_an_attempt_that_kills_its_workers_is_lost_with_the_reason(cluster: TestCluster, tmp_path: Path):
    tasks = "".join(
        f'{{"id": "echo-{n}", "seed": {n}, "data": {{{chr(34) + "kills" + chr(34) + ": true" if n == 1 else ""}}}}}\n'
        for n in range(4)
    )
    (tmp_path / "tasks.jsonl").write_text(tasks)
    settings = {"tasks": 4, "concurrency": 2, "retries": 1, "cluster": cluster.address}
    found = bough.collect("expert", Echo, task_file=tmp_path / "tasks.jsonl", **settings)
    assert [record.id for record in found] == ["echo-0#0", "echo-2#0", "echo-3#0"]
    assert "workers in a row died while they played it" in found.report["lost"]["echo-1#0"]
    assert found.report["worker_losses"] == 5


def test_a_node_that_cannot_play_is_left_out(breakable: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, lines = tmp_path / "gate", list[str]()

    def say(line: str) -> None:
        lines.append(line)
        if sum("is left out" in one for one in lines) == 2:
            gate.touch()  # episodes wait for it: else they could be over before both nodes have been tried

    monkeypatch.setattr(ray_workers, "_say", say)
    breakable.add(env_vars={"BOUGH_TEST_FILE": str(tmp_path), "BOUGH_TEST_GATE": str(gate)})
    found = bough.collect("expert", NeedsFile, tasks=3, cluster=breakable.address)
    assert [record.success for record in found] == [True] * 3
    assert sum("is left out: its file is missing" in line for line in lines) == 2
    breakable.remove(-1)
    with pytest.raises(InputError, match="no node of the cluster can be used: its file is missing"):
        bough.collect("expert", NeedsFile, tasks=3, cluster=breakable.address)


def test_the_stages_of_a_recipe_play_on_the_cluster(cluster: TestCluster, tmp_path: Path):
    stages = "[{collect: {model: expert, tasks: 2}}, {eval: {model: [random], episodes: 2, max_turns: 2}}]"
    (tmp_path / "r.yaml").write_text(f"model: tiny\ndefaults: {{environment: household}}\nstages: {stages}\n")
    folder = tmp_path / "run"
    found = bough.run(tmp_path / "r.yaml", output_dir=folder, report_to=["none"], cluster=cluster.address)
    assert [row.episodes for row in found.evaluations] == [2]
    assert json.loads((folder / "01-collect" / "report.json").read_text())["worker_losses"] == 0
    assert f"address: {cluster.address}" in next((folder / "02-eval").rglob("config.yaml")).read_text()


def test_an_address_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_connect_timeout_s", "1")
    with (
        pytest.raises(BoughError, match=r"--cluster 127\.0\.0\.1:1: the Ray cluster .* does not answer"),
        connected(ClusterConfig(address="127.0.0.1:1")),
    ):
        pass
