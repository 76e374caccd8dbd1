"""A population on two nodes against the same one in this process, with workers and nodes killed between its steps."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bough.evolution.evolve import evolve
from bough.evolution.settings import EvolveConfig
from bough.evolution.watch import Unwatched
from bough.trajectories.writer import Writer
from bough.types import Message, Task, Trajectory
from tests.cluster.real.nodes import start_cluster
from tests.evolution.same import check_same, check_same_episodes
from tests.evolution.small import SETTINGS, WORDS, say
from tests.evolution.test_spread import GRPO


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with start_cluster(cpus=(1, 1)) as cluster:
        yield cluster


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


def hosts() -> list[int]:
    """The processes of workers that have members: they are in the folder of this process then."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = (process / "cmdline").read_bytes().startswith(b"ray::_Host")
            if ours and (process / "cwd").readlink() == Path.cwd():
                found.append(int(process.name))
        except OSError:
            continue
    return found


class At(Unwatched):
    """Does something before generation 1 is trained and before generation 0 is measured."""

    def __init__(self, training: Callable[[], None] | None = None, measuring: Callable[[], None] | None = None) -> None:
        self.training, self.before_measuring, self.updates = training, measuring, list[int]()

    def begin(self, generation: int, members: Sequence[Mapping[str, Any]], steps: int) -> None:
        if generation == 1 and self.training is not None:
            self.training()

    def measuring(self, generation: int, members: Sequence[Mapping[str, Any]]) -> None:
        if generation == 0 and self.before_measuring is not None:
            self.before_measuring()

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        self.updates.append(len(losses))


def kill_a_worker() -> None:
    os.kill(hosts()[0], signal.SIGKILL)


def test_a_population_on_two_workers_is_that_of_one_process_though_a_worker_is_killed(cluster: Any, tmp_path: Path):
    whole = evolve(sft(tmp_path / "whole"))
    lines: list[str] = []
    watch = At(training=kill_a_worker)
    found = evolve(sft(tmp_path / "spread", cluster=cluster.address), notify=lines.append, watch=watch)
    check_same(found, whole)
    assert lines[0] == "cluster of 2 nodes, 2 CPUs and 0 GPUs: 4 members on 2 workers, which load the model first"
    assert found.report["worker_losses"] == 1 and sum("was lost" in line for line in lines) == 1
    assert watch.updates == [4, 4]
    assert hosts() == []


def test_members_on_two_nodes_play_and_learn_as_in_one_process_though_a_node_is_killed(cluster: Any, tmp_path: Path):
    settings = {**GRPO, "model": "tiny", "environment": "tests.api.letters:WriteLetter", "population_size": 4}
    whole = evolve(EvolveConfig(**settings, output_dir=tmp_path / "whole"))
    other = next(node for node in cluster.list_all_nodes() if node != cluster.head_node)
    watch = At(measuring=lambda: cluster.remove_node(other, allow_graceful=False))
    spread, lines = EvolveConfig(**settings, output_dir=tmp_path / "spread", cluster=cluster.address), list[str]()
    found = evolve(spread, notify=lines.append, watch=watch)
    check_same(found, whole)
    check_same_episodes(tmp_path / "spread", tmp_path / "whole")
    # A replacement may start on the node before its loss is known.
    assert found.report["worker_losses"] >= 1, lines
