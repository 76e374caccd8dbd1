"""MLflow, W&B and TensorBoard, through Accelerate's trackers."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from bough.errors import InputError, first_line
from bough.files import locked, refuse_links, text_digest
from bough.ledger import is_finite

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
        self._failures: dict[str, int] = {}  # in a row
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
        for name, tracker in list(self._open.items()):
            try:
                what(tracker)
            except Exception as error:
                if name not in self._failures:
                    said = "%s failed: %s. The run continues; all numbers are in metrics.jsonl."
                    log.warning(said, name, first_line(error))
                self._failures[name] = self._failures.get(name, 0) + 1
                if self._failures[name] == TRIES:
                    log.warning("%s failed %d times in a row and is not used for the rest of this run.", name, TRIES)
                    del self._open[name]
            else:
                if name in self._failures:
                    self._failures[name] = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


LONGEST = 500  # characters of a setting that every backend accepts


# A recipe's run in MLflow: one parent, with a child for each stage.

EXPERIMENT = "bough"
FOLDER, KEY = "bough.folder", "bough.key"  # the path of a run, and its digest, which needs no quotes in a query


class RecipeTracker:
    """Opens the parent run of a run folder, the same one when the run resumes. Training stages add themselves to it.

    MLflow keeps its records in `mlflow.db` beside the run folder unless MLFLOW_TRACKING_URI is set. Errors of MLflow
    are logged and do not stop the run; where the parent run cannot be opened, the context is None.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name, self.settings = folder, name, settings
        self._mlflow = import_tracker("mlflow")
        self._opened = False

    def __enter__(self) -> Self | None:
        try:
            self._open()
        except Exception as error:
            said = first_line(error)
            log.warning("mlflow cannot be opened: %s. The run continues without it; its folder has all numbers.", said)
            return None
        self._opened = True
        return self

    def _open(self) -> None:
        with setting_up(self.folder.parent):
            keep_in(self.folder.parent)
            self._home = home = experiment(EXPERIMENT, self.folder.parent)
        path = str(self.folder.resolve())
        key = text_digest(path, size=16)
        before = self._search(f"tags.`{KEY}` = '{key}'")
        self._mlflow.start_run(
            run_id=before[0].info.run_id if before else None, experiment_id=home, run_name=self.name,
            tags={FOLDER: path, KEY: key},
        )  # fmt: skip
        if not before:
            with _leniently("the recipe's settings"):
                self._mlflow.log_params(_short({key: value for key, value in self.settings.items() if key != "stages"}))

    def _search(self, words: str) -> list[Any]:
        return list(self._mlflow.search_runs([self._home], filter_string=words, output_format="list"))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._opened:
            return
        with _leniently("the end of the run"):
            failed = "KILLED" if kind and issubclass(kind, KeyboardInterrupt) else "FAILED"
            self._mlflow.end_run(failed if kind else "FINISHED")

    def add(self, stage: str, settings: Mapping[str, Any], numbers: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Adds a finished stage that does not report for itself."""
        with _leniently(stage), self._mlflow.start_run(experiment_id=self._home, run_name=stage, nested=True):
            self._mlflow.log_params(_short(settings))
            self._mlflow.log_metrics({key: float(value) for key, value in numbers.items() if number(value)})
            for file in files:
                self._mlflow.log_artifact(str(file))

    def knows(self, stage: str) -> bool:
        """Whether a stage was added before; if MLflow fails, the stage is not added again."""
        with _leniently(f"a search for {stage}"):
            parent = self._mlflow.active_run().info.run_id
            children = self._search(f"tags.`mlflow.parentRunId` = '{parent}'")
            return any(child.info.run_name == stage for child in children)
        return True

    def keep(self, file: Path) -> None:
        """Uploads the current version of a file of the whole run."""
        with _leniently(file.name):
            self._mlflow.log_artifact(str(file))


def _short(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[:LONGEST] if isinstance(value, str) else value for key, value in plain(settings).items()}


@contextmanager
def _leniently(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("MLflow failed on %s: %s", what, first_line(error))
