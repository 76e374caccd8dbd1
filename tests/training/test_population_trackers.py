"""Members of a population as child runs in a real MLflow database."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.training import trackers as trackers_module
from bough.training.trackers import PopulationTrackers

mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")


def line(generation: int, name: str, fitness: float | None, **more: Any) -> dict[str, Any]:
    """A line of the lineage."""
    return {
        "generation": generation, "name": name, "born": 0, "parent": None, "mutation": None, "settings": {"beta": 0.1},
        "rank": 4, "step": 2 * generation + 2, "loss": 0.5, "fitness": fitness, "interval": [0.25, 0.75], "place": 1,
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose database is made once: that takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = os.environ.pop("MLFLOW_TRACKING_URI", None)
    yield folder
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


def runs(name: str) -> dict[str, Any]:
    return {run.info.run_name: run for run in mlflow.search_runs(experiment_names=[name], output_format="list")}


def test_every_member_is_a_child_with_its_settings_and_its_fitness_per_generation(database: Path):
    mutation = {"kind": "hyper_parameter", "setting": "beta", "before": 0.1, "after": 0.12}
    with PopulationTrackers(["mlflow"], database / "run", "whole", {"seed": 3}) as trackers:
        trackers.log({"step": 0, "fitness": 0.5})
        trackers.log_members([line(0, "g0-0", 0.5, lives=True), line(0, "g0-1", None, interval=None, lives=False)])
        assert runs("whole")["g0-1"].info.status == "FINISHED" and runs("whole")["g0-0"].info.status == "RUNNING"
        child = line(1, "g1-1", 0.625, born=1, parent="g0-0", mutation=mutation, settings={"beta": 0.12})
        trackers.log_members([child, line(1, "g0-0", 0.75)])
    found = runs("whole")
    assert found.keys() == {"run", "g0-0", "g0-1", "g1-1"}
    parent = found["run"].info.run_id
    assert {run.data.tags.get("mlflow.parentRunId") for run in found.values()} == {None, parent}
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    history = mlflow.MlflowClient().get_metric_history(found["g0-0"].info.run_id, "fitness")
    assert [(point.step, point.value) for point in history] == [(0, 0.5), (1, 0.75)]
    assert found["g0-0"].data.metrics["updates"] == 4 and "fitness" not in found["g0-1"].data.metrics
    assert found["g1-1"].data.params == {"beta": "0.12", "lora_r": "4"}
    tags = found["g1-1"].data.tags
    assert (tags["bough.parent"], tags["bough.mutation.setting"], tags["bough.born"]) == ("g0-0", "beta", "1")


def test_a_run_that_fails_ends_its_members_too(database: Path):
    def fail() -> None:
        with PopulationTrackers(["mlflow"], database / "run", "failed", {}) as trackers:
            trackers.log_members([line(0, "g0-0", 0.5)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert runs("failed")["g0-0"].info.status == "FAILED"


def test_errors_of_mlflow_do_not_stop_the_evolution_and_are_not_repeated_forever(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    calls = []

    def down(self: Any, run: str, **given: Any) -> None:
        calls.append(run)
        raise OSError("the server is gone")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", down)
    with PopulationTrackers(["mlflow"], database / "run", "down", {}) as trackers:
        trackers.log_members([line(0, f"g0-{number}", 0.5) for number in range(8)])
        trackers.log_members([line(1, f"g0-{number}", 0.5) for number in range(8)])
    assert len(calls) == trackers_module.TRIES
    assert "lineage.jsonl" in caplog.text and "is not used for the rest" in caplog.text


def test_a_population_runs_without_an_mlflow_that_cannot_be_opened(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def down(name: str, folder: Path) -> str:
        raise OSError("the server is gone\n[SQL: CREATE TABLE runs]")

    monkeypatch.setattr(trackers_module, "experiment", down)
    with PopulationTrackers(["mlflow"], database / "run", "closed", {}) as trackers:
        trackers.log_members([line(0, "g0-0", 0.5)])
    assert "mlflow cannot be opened: the server is gone." in caplog.text


def test_other_trackers_have_no_members(tmp_path: Path):
    with PopulationTrackers([], tmp_path, None, {}) as trackers:
        trackers.log_members([line(0, "g0-0", 0.5)])
    assert list(tmp_path.iterdir()) == []
