"""A population in two parts against the same population in one process. Workers are objects in this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.experiments import evolve as setup
from bough.experiments.cluster import Part, SpreadMembers, packed_code, spread
from bough.experiments.evolve import evolve
from bough.rollouts.ray_workers import Surroundings
from bough.terminal.console import MembersProgress
from tests.commands.letters import WriteLetter
from tests.experiments.parts import FakeActors
from tests.experiments.same import check_same, check_same_episodes
from tests.experiments.small import SETTINGS, config

# Not by importing it: Ray reads its settings then.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
SMALL: dict[str, Any] = {"generations": 2, "steps": 1}
GRPO: dict[str, Any] = {
    "method": "grpo", "environment": WriteLetter, "eval_tasks": 4, "max_new_tokens": 4, "population_size": 2,
    "generations": 1, "steps": 1, "seed": 3, "set": {**SETTINGS["set"], "learning_rate": 0.01, "group_size": 4},
    "mutate": {"learning_rate": "1e-3..1e-1"},
}  # fmt: skip


def in_parts(monkeypatch: pytest.MonkeyPatch, kill: tuple[str, int] | None = None) -> list[FakeActors]:
    """From now on a cluster is two parts in this process."""
    made: list[FakeActors] = []

    @contextmanager
    def two_parts(config: Any, records: Any, _: Any) -> Iterator[SpreadMembers]:
        actors: Any = FakeActors(2, lambda: _started(config, records), kill)
        made.append(actors)
        with spread(config, actors) as members:
            yield members

    monkeypatch.setattr(setup, "members_on_cluster", two_parts)
    return made


def _started(config: Any, records: Any) -> Part:
    part = Part(config, records, packed_code(config), Surroundings.here())
    assert part.start() is None
    return part


class Watch(MembersProgress):
    """Notes after which updates it was told the losses of how many members."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[tuple[int, int]] = []

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        self.updates.append((done, len(losses)))


def test_a_population_in_parts_is_that_of_one_process_though_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = evolve(config(tmp_path / "whole", **SMALL))
    made, watch = in_parts(monkeypatch, kill=("train", 2)), Watch()
    found = evolve(config(tmp_path / "parts", **SMALL, cluster="auto"), watch=watch)
    check_same(found, whole)
    assert watch.updates == [(1, 4), (1, 4)]
    assert found.report["worker_losses"] == made[0].losses > 0 and "worker_losses" not in whole.report


def test_members_in_parts_play_and_learn_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = bough.evolve("tiny", **GRPO, output_dir=tmp_path / "one")
    made = in_parts(monkeypatch, kill=("play", 3))
    two = bough.evolve("tiny", **GRPO, output_dir=tmp_path / "two", cluster="auto")
    assert made[0].losses > 0
    check_same(two, one)
    check_same_episodes(tmp_path / "two", tmp_path / "one")
