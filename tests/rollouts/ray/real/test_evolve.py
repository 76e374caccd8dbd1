"""A population on two nodes against the same one in this process, with workers and nodes killed between its steps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bough.data.writer import Writer
from bough.experiments.evolve import evolve
from bough.experiments.evolve_settings import EvolveConfig
from bough.rollouts import ray_pool
from bough.terminal.console import MembersProgress
from bough.types import Message, Task, Trajectory
from tests.experiments.same import check_same, check_same_episodes
from tests.experiments.small import SETTINGS, WORDS, say
from tests.experiments.test_spread import GRPO
from tests.rollouts.ray.real.clusters import TestCluster, until

pytestmark = pytest.mark.cluster


def sft(folder: Path, **changes: Any) -> EvolveConfig:
    folder.mkdir()
    with Writer(folder / "demos.jsonl") as writer:
        for number in range(16):
            word = WORDS[number % len(WORDS)]
            start = [Message(role="user", content=f"{number}: write {word}")]
            task = Task(id=str(number))
            writer.write(Trajectory(id=task.id, task=task, start=start, turns=say(word), success=True))
    own = {"method": "sft", "generations": 2, "steps": 1, "mutate": {"learning_rate": "1e-4..1e-2"}}
    settings = {**SETTINGS, **own, **changes}
    return EvolveConfig(train_file=folder / "demos.jsonl", output_dir=folder / "run", **settings)


class At(MembersProgress):
    """Does something before generation 1 is trained and before generation 0 is measured."""

    def __init__(self, training: Callable[[], None] | None = None, measuring: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.training, self.before_measuring, self.updates = training, measuring, list[int]()

    def begin(self, generation: int, members: Sequence[Mapping[str, Any]], steps: int) -> None:
        if generation == 1 and self.training is not None:
            self.training()

    def measuring(self, generation: int, members: Sequence[Mapping[str, Any]]) -> None:
        if generation == 0 and self.before_measuring is not None:
            self.before_measuring()

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        self.updates.append(len(losses))


@pytest.fixture
def all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work begins when all workers are there, however long their processes take to start."""
    monkeypatch.setattr(ray_pool, "START_S", 1000.0)


@pytest.mark.usefixtures("all_workers")
def test_a_population_on_two_workers_is_that_of_one_process_though_a_worker_is_killed(
    cluster: TestCluster, tmp_path: Path
):
    whole = evolve(sft(tmp_path / "whole"))
    lines: list[str] = []
    watch = At(training=cluster.kill_worker)
    found = evolve(sft(tmp_path / "spread", cluster=cluster.address), notify=lines.append, watch=watch)
    check_same(found, whole)
    assert lines[0] == "cluster of 3 nodes, 2 CPUs and 0 GPUs: 4 members on 2 workers, which load the model first"
    assert found.report["worker_losses"] == 1 and sum("was lost" in line for line in lines) == 1
    assert watch.updates == [4, 4]
    until(lambda: cluster.workers() == [])


@pytest.mark.usefixtures("all_workers")
def test_members_on_two_nodes_play_and_learn_as_in_one_process_though_a_node_is_killed(
    breakable: TestCluster, tmp_path: Path
):
    settings = {**GRPO, "model": "tiny", "environment": "tests.commands.letters:WriteLetter", "population_size": 4}
    whole = evolve(EvolveConfig(**settings, output_dir=tmp_path / "whole"))
    # The members there could play to the end before a worker notices that its node has died.
    watch = At(measuring=lambda: breakable.remove(0, wait=True))
    spread, lines = EvolveConfig(**settings, output_dir=tmp_path / "spread", cluster=breakable.address), list[str]()
    found = evolve(spread, notify=lines.append, watch=watch)
    check_same(found, whole)
    check_same_episodes(tmp_path / "spread", tmp_path / "whole")
    assert found.report["worker_losses"] == 1, lines


def test_a_node_that_lacks_what_the_environment_needs_has_no_members(
    breakable: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    breakable.remove(0)
    breakable.add(env_vars={"BOUGH_TEST_FILE": str(tmp_path)})
    lines: list[str] = []
    settings = {
        **GRPO,
        "model": "tiny",
        "environment": "tests.rollouts.ray.worlds:LetterWithFile",
        "population_size": 2,
    }
    monkeypatch.setenv("BOUGH_TEST_FILE", str(tmp_path))  # the driver has it
    found = evolve(
        EvolveConfig(**settings, output_dir=tmp_path / "run", cluster=breakable.address), notify=lines.append
    )
    assert len(found.lineage) == 2 and found.report["worker_losses"] == 0
    assert sum("is left out: its file is missing" in line for line in lines) == 1, lines
