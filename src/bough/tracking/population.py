"""A population in the trackers: the run's own numbers, and in MLflow a child run for each member."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bough.errors import first_line
from bough.tracking.trackers import TRIES, Name, Trackers, number, plain

LONGEST = 500  # characters of a setting that every backend accepts
PARENT, RUN_NAME = "mlflow.parentRunId", "mlflow.runName"
log = logging.getLogger(__name__)
Line = Mapping[str, Any]


class PopulationTrackers(Trackers):
    """Trackers of a run whose members get child runs in MLflow: settings as parameters, numbers per generation.

    A run that resumes is a new run in MLflow, with children for the members that are alive then.
    """

    def __init__(self, names: Sequence[Name], run: Path, project: str | None, settings: dict[str, Any]) -> None:
        super().__init__(names, run, project, settings)
        self._children = MemberRuns() if "mlflow" in self._open else None

    def log_members(self, lines: Sequence[Line]) -> None:
        """The members of a generation, as described in the lineage."""
        if self._children is not None:
            self._children.log(lines)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._children is not None:
            self._children.close(
                "FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
            )
        super().__exit__(kind, error, trace)


class MemberRuns:
    """The child runs of MLflow's active run, one for each member, which ends when the member is replaced.

    Errors of MLflow are logged and do not stop the evolution; after some in a row it is not called again.
    """

    def __init__(self) -> None:
        import mlflow

        active = mlflow.active_run()
        assert active is not None, "the run's own tracker is open"
        self._client, self._parent = mlflow.MlflowClient(), active.info
        self._open: dict[str, str] = {}  # run ids by member
        self._failures = 0

    def log(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._try(line["name"], lambda line=line: self._log(line))
        last = [line["name"] for line in lines if line.get("lives") is False]
        for name in last:
            self._end(name, "FINISHED")

    def close(self, status: str) -> None:
        """Ends the runs that are still open."""
        for name in list(self._open):
            self._end(name, status)

    def _log(self, line: Line) -> None:
        from mlflow.entities import Metric, Param

        params: list[Any] = []
        if line["name"] not in self._open:
            self._open[line["name"]] = self._create(line)
            values = plain({**line["settings"], "lora_r": line["rank"]})
            params = [Param(key, str(value)[:LONGEST]) for key, value in values.items()]
        low, high = line.get("interval") or (None, None)
        measured = {key: line.get(key) for key in ("fitness", "loss", "place", "step")}
        measured |= {"fitness_low": low, "fitness_high": high}
        now = int(1000 * time.time())
        metrics = [
            Metric("updates" if key == "step" else key, float(value), now, line["generation"])
            for key, value in measured.items()
            if value is not None and number(value)
        ]
        self._client.log_batch(self._open[line["name"]], metrics=metrics, params=params)

    def _create(self, line: Line) -> str:
        mutation = line.get("mutation") or {}
        about = {"parent": line.get("parent"), "born": line.get("born")}
        about |= {f"mutation.{key}": value for key, value in mutation.items()}
        tags = {f"bough.{key}": str(value)[:LONGEST] for key, value in about.items() if value is not None}
        tags |= {PARENT: self._parent.run_id, RUN_NAME: line["name"]}
        return str(self._client.create_run(self._parent.experiment_id, tags=tags).info.run_id)

    def _end(self, name: str, status: str) -> None:
        run = self._open.pop(name, None)
        if run is not None:
            self._try(name, lambda: self._client.set_terminated(run, status))

    def _try(self, name: str, what: Any) -> None:
        if self._failures >= TRIES:
            return
        try:
            what()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            log.warning("MLflow failed on member %s: %s. All numbers are in lineage.jsonl.", name, first_line(error))
            if self._failures == TRIES:
                log.warning("MLflow failed %d times in a row and gets no more members of this run.", TRIES)
