"""MLflow, W&B and TensorBoard, through Accelerate's trackers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

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
        plain = {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}
        for tracker in self._open:
            tracker.store_init_configuration(plain)

    def log(self, values: dict[str, Any]) -> None:
        """The finite numbers among `values`, at their step."""
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v) and k != "step"}
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


def _start(name: Name, run: Path, project: str) -> Any:
    from accelerate import tracking

    try:
        __import__(name)
    except ImportError:
        raise InputError(f"report_to {name} needs a package that is not here; pip install '{PACKAGES[name]}'") from None
    if name == "mlflow":
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{(run.parent / 'mlflow.db').absolute()}")
        tracker: Any = tracking.MLflowTracker(experiment_name=project, run_name=run.name)
    elif name == "wandb":
        tracker = tracking.WandBTracker(run_name=project, name=run.name, dir=str(run))
    else:
        tracker = tracking.TensorBoardTracker(run_name="tensorboard", logging_dir=str(run))
    tracker.start()
    return tracker
