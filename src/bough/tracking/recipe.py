"""A recipe's run in MLflow: one parent, with a child for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bough.tracking.trackers import experiment, import_tracker, keep_in, number, plain

EXPERIMENT = "bough"
FOLDER = "bough.folder"


class RecipeTracker:
    """Opens the parent of a run folder, the same one when the run goes on. Training stages hang themselves under it.

    MLflow keeps its records in `mlflow.db` beside the run folder unless MLFLOW_TRACKING_URI says otherwise.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name, self.settings = folder, name, settings
        self._mlflow = import_tracker("mlflow")

    def __enter__(self) -> Self:
        keep_in(self.folder.parent)
        self._home = home = experiment(EXPERIMENT, self.folder.parent)
        path = str(self.folder.resolve())
        before = self._mlflow.search_runs(
            [home], filter_string=f"tags.`{FOLDER}` = '{path}'", output_format="list", max_results=1
        )
        self._mlflow.start_run(
            run_id=before[0].info.run_id if before else None, experiment_id=home, run_name=self.name,
            tags={FOLDER: path},
        )  # fmt: skip
        if not before:
            self._mlflow.log_params(plain(self.settings))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mlflow.end_run("FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED")

    def add(self, stage: str, settings: Mapping[str, Any], numbers: Mapping[str, Any], files: Sequence[Path]) -> None:
        """A finished stage that does not report for itself."""
        with self._mlflow.start_run(experiment_id=self._home, run_name=stage, nested=True):
            self._mlflow.log_params(plain(settings))
            self._mlflow.log_metrics({key: float(value) for key, value in numbers.items() if number(value)})
            for file in files:
                self._mlflow.log_artifact(str(file))

    def keep(self, file: Path) -> None:
        """A file of the whole run, in its newest state."""
        self._mlflow.log_artifact(str(file))
