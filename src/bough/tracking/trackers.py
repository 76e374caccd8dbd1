"""MLflow, W&B and TensorBoard, through Accelerate's trackers."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from bough.disk import locked, refuse_links
from bough.errors import InputError, first_line
from bough.metrics import is_finite

log = logging.getLogger(__name__)
Name = Literal["mlflow", "wandb", "tensorboard"]
PACKAGES = {"mlflow": "bough[mlflow]", "wandb": "bough[wandb]", "tensorboard": "tensorboard"}
# The database that Bough has given MLflow; processes that this one starts know it, too.
OURS = "_BOUGH_MLFLOW_URI"

# A tracker that has failed this many times in a row is not used again: each failure may be a time-out.
TRIES = 3


class Trackers:
    """Opens the named trackers for one run and passes on its settings and numbers.

    MLflow keeps its records in `mlflow.db` (SQLite) beside the run folder unless
    MLFLOW_TRACKING_URI says otherwise; TensorBoard writes into the run folder. A tracker that is
    not installed is an error; one that cannot be opened or fails later is logged and does not stop the run.
    """

    def __init__(self, names: Sequence[Name], run: Path, project: str | None, settings: dict[str, Any]) -> None:
        self._open: dict[Name, Any] = {}
        self._failures: dict[Name, int] = {}  # in a row
        for name in names:
            import_tracker(name)
        for name in names:
            try:
                self._open[name] = _start(name, run, project or "bough")
            except Exception as error:
                log.warning(
                    "%s cannot be opened: %s. The run continues without it; all numbers are in metrics.jsonl.",
                    name,
                    first_line(error),  # MLflow's database adds its whole SQL
                )
        self._for_each(lambda tracker: tracker.store_init_configuration(plain(settings)))

    def log(self, values: dict[str, Any]) -> None:
        """The finite numbers among `values`, at their step."""
        numbers = {key: value for key, value in values.items() if number(value) and key != "step"}
        self._for_each(lambda tracker: tracker.log(numbers, step=values["step"]))

    def close(self) -> None:
        self._for_each(lambda tracker: tracker.finish())
        self._open = {}

    def _for_each(self, what: Callable[[Any], None]) -> None:
        """Calls every tracker; an error of a tracker is logged the first time."""
        for name, tracker in list(self._open.items()):
            try:
                what(tracker)
            except Exception as error:
                if name not in self._failures:
                    log.warning(
                        "%s failed: %s. Training continues; all numbers are in metrics.jsonl.", name, first_line(error)
                    )
                self._failures[name] = self._failures.get(name, 0) + 1
                if self._failures[name] == TRIES:
                    del self._open[name]
                    log.warning("%s failed %d times in a row and is not used for the rest of this run.", name, TRIES)
            else:
                if name in self._failures:
                    self._failures[name] = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in types that every tracker accepts."""
    return {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}


def number(value: object) -> bool:
    return isinstance(value, bool) or is_finite(value)


def import_tracker(name: Name) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"report_to {name} needs a package that is not installed; pip install '{PACKAGES[name]}'"
        ) from None


def setting_up(folder: Path) -> AbstractContextManager[None]:
    """A lock for creating MLflow's database: two processes at the same time break it."""
    return locked(folder / ".mlflow.lock", wait=True)


def keep_in(folder: Path) -> None:
    """Sets MLflow's database to a file in `folder`, unless the user has set another."""
    import mlflow

    for chatty in ("alembic", "mlflow.store.db.utils"):  # they log every table they create
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if _is_users():
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])  # it may have been another in this process
    else:
        refuse_links(folder / "mlflow.db", folder / "mlflow-files")
        mlflow.set_tracking_uri(uri := f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        os.environ[OURS] = uri
        # Otherwise it creates a folder `mlruns` in the working directory.
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = _files(folder)


def _is_users() -> bool:
    """Whether the user has set MLflow's database. MLflow writes what it is given here to the same variable."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    return uri is not None and uri != os.environ.get(OURS)


def _files(folder: Path) -> str:
    return (folder / "mlflow-files").absolute().as_uri()


def experiment(name: str, folder: Path) -> str:
    """MLflow's id of the experiment, created if needed, with its files in `folder` if its database is there."""
    import mlflow

    found = mlflow.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    home = None if _is_users() else _files(folder)
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
