"""What those who watch an evolution are told, and what its trackers get."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from bough.experiments import evolve as loop
from bough.experiments.evolve import evolve
from bough.terminal.console import MembersProgress
from tests.experiments.small import config


class Recorder(MembersProgress):
    """Writes everything down."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def begin(self, generation: int, members: Sequence[Mapping[str, Any]], steps: int) -> None:
        self.told.append(("begin", generation, sorted(one["name"] for one in members), steps))

    def updated(self, done: int, losses: Mapping[str, float]) -> None:
        self.told.append(("updated", done, sorted(losses)))

    def played(self, done: int, total: int) -> None:
        self.told.append(("played", done, total))

    def measuring(self, generation: int, members: Sequence[Mapping[str, Any]]) -> None:
        self.told.append(("measuring", generation, sorted(one["name"] for one in members)))

    def measured(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.told.append(("measured", [(line["generation"], line["name"]) for line in lines]))


class Tracked:
    """Trackers that are no trackers."""

    def __init__(self, names: Sequence[str], run: Path, project: str | None, settings: dict[str, Any]) -> None:
        self.opened = (list(names), run.name, project, settings["seed"])
        self.logged: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values["step"])


def test_every_update_and_generation_is_told_and_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[Tracked] = []

    def trackers(*given: Any) -> Tracked:
        opened.append(Tracked(*given))
        return opened[-1]

    monkeypatch.setattr(loop, "Trackers", trackers)
    watch = Recorder()
    settings = {"population_size": 2, "generations": 2, "report_to": ["mlflow"], "wandb_project": "bred"}
    found = evolve(config(tmp_path, **settings), watch=watch)
    lines = [[(one["generation"], one["name"]) for one in found.lineage if one["generation"] == n] for n in (0, 1)]
    names = [sorted(name for _, name in generation) for generation in lines]
    assert watch.told == [
        told
        for n in (0, 1)
        for told in (
            ("begin", n, names[n], 2), ("updated", 1, names[n]), ("updated", 2, names[n]),
            ("measuring", n, names[n]), ("measured", lines[n]),
        )
    ]  # fmt: skip
    [tracked] = opened
    assert tracked.opened == (["mlflow"], "run", "bred", 3) and tracked.logged == [2, 4]
    # Where a run is reported may change when it resumes.
    settings |= {"report_to": [], "generations": 3}
    longer = evolve(config(tmp_path, **settings, resume=True))
    assert {line["generation"] for line in longer.lineage} == {0, 1, 2}
