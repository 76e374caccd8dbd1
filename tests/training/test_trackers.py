import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bough.errors import InputError
from bough.files import locked
from bough.policy.processes import Processes
from bough.training import trackers as recipe_module
from bough.training import trackers as trackers_module
from bough.training.trackers import OURS, RecipeTracker, Trackers


def test_mlflow_keeps_settings_and_numbers_in_a_database_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = tmp_path / "run"
    run.mkdir()
    with Trackers(["mlflow"], run, "household", {"model": "tiny", "lora_target_modules": ["q"]}) as trackers:
        trackers.log({"step": 1, "loss": 2.5, "margin": float("nan")})
        trackers.log({"step": 2, "loss": 1.5})
    assert (tmp_path / "mlflow.db").exists()
    (found,) = mlflow.search_runs(experiment_names=["household"], output_format="list")
    assert found.info.run_name == "run"
    assert found.data.params["model"] == "tiny"
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.5), (2, 1.5)]


def test_each_run_of_one_process_has_its_own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow")
    for name in ("MLFLOW_TRACKING_URI", OURS):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        with Trackers(["mlflow"], tmp_path / folder / "run", None, {}) as trackers:
            trackers.log({"step": 1, "loss": 1.0})
    assert (tmp_path / "one/mlflow.db").exists() and (tmp_path / "other/mlflow.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/users.db")
    (tmp_path / "third").mkdir()
    with Trackers(["mlflow"], tmp_path / "third/run", None, {}):
        pass
    assert (tmp_path / "users.db").exists() and not (tmp_path / "third/mlflow.db").exists()


def test_one_process_at_a_time_makes_mlflows_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Three that made it at once left two of them with an error about a table."""
    pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    asked: list[str] = []

    def made_by_us_alone(name: str, folder: Path) -> str:
        with pytest.raises(BlockingIOError), locked(folder / ".mlflow.lock", wait=False):
            pass
        asked.append(name)
        raise KeyboardInterrupt  # what follows is MLflow's own

    for place in (trackers_module, recipe_module):
        monkeypatch.setattr(place, "experiment", made_by_us_alone)
    with pytest.raises(KeyboardInterrupt):
        Trackers(["mlflow"], tmp_path / "run", "household", {})
    with pytest.raises(KeyboardInterrupt), RecipeTracker(tmp_path / "run", "mine", {}):
        pass
    assert asked == ["household", "bough"]


def test_wandb_keeps_settings_and_numbers_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="the wandb extra is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    Processes()  # as every stage begins; Accelerate's tracker asks which process this is
    with Trackers(["wandb"], tmp_path, "household", {"model": "tiny", "lora_target_modules": ["q"]}) as trackers:
        trackers.log({"step": 1, "loss": 2.5, "margin": float("nan")})
    (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    kept = record.read_bytes()
    assert b"household" in kept and b"lora_target_modules" in kept
    assert b"loss" in kept and b"2.5" in kept and b"margin" not in kept


def test_tensorboard_keeps_numbers_in_the_run_folder(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Trackers(["tensorboard"], tmp_path, None, {"model": "tiny"}) as trackers:
        trackers.log({"step": 1, "loss": 2.5})
        trackers.log({"step": 2, "loss": 1.5})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.5), (2, 1.5)]


def test_a_tracker_that_is_not_installed_is_an_input_error_before_any_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []
    monkeypatch.setattr(trackers_module, "_start", lambda name, *_: opened.append(name))
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'bough\[wandb\]'"):
        Trackers(["mlflow", "wandb"], tmp_path, None, {})
    assert opened == []


class Flaky:
    """Fails in the calls whose numbers it is given."""

    def __init__(self, *failing: int) -> None:
        self.failing, self.calls, self.logged = failing, 0, list[int]()

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise RuntimeError(f"call {self.calls}\n[SQL: INSERT INTO metrics]")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._call()

    def log(self, values: dict[str, Any], step: int) -> None:
        self._call()
        self.logged.append(step)

    def finish(self) -> None:
        self._call()


def use(monkeypatch: pytest.MonkeyPatch, trackers: dict[str, Flaky]) -> None:
    monkeypatch.setattr("bough.training.trackers._start", lambda name, *_: trackers[name])
    monkeypatch.setattr("bough.training.trackers.import_tracker", lambda name: None)


def test_a_failure_is_logged_once_and_the_other_trackers_get_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    flaky, good = Flaky(1, 3, 4, 6, 8), Flaky()
    use(monkeypatch, {"mlflow": flaky, "tensorboard": good})
    with Trackers(["mlflow", "tensorboard"], tmp_path, None, {"a": 1}) as trackers:
        for step in range(1, 7):
            trackers.log({"step": step, "loss": 1.0})
    assert good.logged == [1, 2, 3, 4, 5, 6] and flaky.logged == [1, 4, 6]
    assert caplog.text.count("mlflow failed: ") == 1 and "in a row" not in caplog.text


def test_a_tracker_that_fails_three_times_in_a_row_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    dead = Flaky(*range(2, 100))
    use(monkeypatch, {"wandb": dead})
    with Trackers(["wandb"], tmp_path, None, {}) as trackers:
        for step in range(1, 9):
            trackers.log({"step": step, "loss": 1.0})
    assert dead.calls == 4  # the settings, and three tries
    assert "wandb failed: call 2. The run continues" in caplog.text
    assert "wandb failed 3 times in a row and is not used for the rest of this run" in caplog.text


def test_a_tracker_that_cannot_be_opened_is_said_once_and_the_others_get_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    before, after = Flaky(), Flaky()

    def start(name: str, *_: Any) -> Flaky:
        if name == "wandb":
            raise OSError("no network\n[SQL: CREATE TABLE runs]")
        return before if name == "mlflow" else after

    monkeypatch.setattr("bough.training.trackers._start", start)
    monkeypatch.setattr("bough.training.trackers.import_tracker", lambda name: None)
    with Trackers(["mlflow", "wandb", "tensorboard"], tmp_path, None, {}) as trackers:
        for step in (1, 2):
            trackers.log({"step": step, "loss": 1.0})
    for one in (before, after):
        assert one.logged == [1, 2] and one.calls == 4  # the settings, two steps, the end
    said = "wandb cannot be opened: no network. The run continues without it; all numbers are in metrics.jsonl."
    assert [record.getMessage() for record in caplog.records] == [said]
