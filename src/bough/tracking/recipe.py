"""A recipe's run in MLflow: one parent, with a child for each stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bough.digest import text_digest
from bough.errors import first_line
from bough.tracking.trackers import experiment, import_tracker, keep_in, number, plain, setting_up

EXPERIMENT = "bough"
FOLDER, KEY = "bough.folder", "bough.key"  # the path of a run, and its digest, which needs no quotes in a query
LONGEST = 500  # characters of a setting that every backend accepts
log = logging.getLogger("bough")


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._opened:
            return
        with _leniently("the end of the run"):
            self._mlflow.end_run(
                "FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
            )

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
