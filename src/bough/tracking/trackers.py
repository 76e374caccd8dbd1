"""MLflow, W&B and TensorBoard, through Accelerate's trackers."""

from __future__ import annotations

import importlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from bough.disk import locked
from bough.errors import InputError

Name = Literal["mlflow", "wandb", "tensorboard"]
PACKAGES = {"mlflow": "bough[mlflow]", "wandb": "bough[wandb]", "tensorboard": "tensorboard"}


class Trackers:
    """Opens the named trackers for one run and passes its settings and numbers on.

    MLflow keeps its records in `mlflow.db` (SQLite) beside the run folder unless
    MLFLOW_TRACKING_URI says otherwise; TensorBoard writes into the run folder.
    """

    def __init__(self, names: Sequence[Name], run: Path, project: str | None, settings: dict[str, Any]) -> None:
        self._open = [_start(name, run, project or "bough") for name in names]
        for tracker in self._open:
            tracker.store_init_configuration(plain(settings))

    def log(self, values: dict[str, Any]) -> None:
        """The finite numbers among `values`, at their step."""
        numbers = {key: value for key, value in values.items() if number(value) and key != "step"}
        for tracker in self._open:
            tracker.log(numbers, step=values["step"])

    def close(self) -> None:
        for tracker in self._open:
            tracker.finish()
        self._open = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as every tracker takes them."""
    return {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}


def number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def import_tracker(name: Name) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"report_to {name} needs a package that is not here; pip install '{PACKAGES[name]}'") from None


def setting_up(folder: Path) -> AbstractContextManager[None]:
    """One process at a time makes MLflow's database: two at once break it."""
    return locked(folder / ".mlflow.lock", wait=True)


def keep_in(folder: Path) -> None:
    """Tells MLflow to keep its records in a database in `folder`, unless the user has told it otherwise."""
    import mlflow

    for chatty in ("alembic", "mlflow.store.db.utils"):  # they tell of every table that they make
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        # Else it makes a folder `mlruns` wherever we happen to stand.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = _files(folder)


def _files(folder: Path) -> str:
    return (folder / "mlflow-files").absolute().as_uri()


def experiment(name: str, folder: Path) -> str:
    """MLflow's number of the experiment, made if need be, with its files in `folder` where its records are there."""
    import mlflow

    found = mlflow.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    home = None if "MLFLOW_TRACKING_URI" in os.environ else _files(folder)
    return str(mlflow.create_experiment(name, artifact_location=home))


def _start(name: Name, run: Path, project: str) -> Any:
    package = import_tracker(name)
    from accelerate import tracking

    if name == "mlflow":
        inside = package.active_run() is not None  # of a recipe's run
        with setting_up(run.parent):
            if not inside:
                keep_in(run.parent)
            experiment(project, run.parent)
        tracker: Any = tracking.MLflowTracker(experiment_name=project, run_name=run.name, nested_run=inside)
    elif name == "wandb":
        tracker = tracking.WandBTracker(run_name=project, name=run.name, dir=str(run))
    else:
        tracker = tracking.TensorBoardTracker(run_name="tensorboard", logging_dir=str(run))
    tracker.start()
    return tracker
