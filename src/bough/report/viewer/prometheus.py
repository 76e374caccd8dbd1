"""The numbers of every run in the folder in Prometheus' text format, for `/metrics`.

Names and label values come from files that anyone may have written: names are reduced to
the characters that the format allows, values are escaped, and no series appears twice.
Prometheus rejects a whole answer for one bad line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bough.ledger import is_finite
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import overview
from bough.report.viewer.training import newest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("pending", "running", "done", "interrupted")
# Of metrics.jsonl, what only grows during a run.
COUNTERS = {"tokens_computed"}
HELP = {
    "bough_stage_state": "1 for the state that the stage is in, 0 for the others.",
    "bough_stage_duration_seconds": "How long a finished stage took.",
    "bough_stage_records": "Records on file, by kind and outcome.",
    "bough_stage_lost_episodes": "Episodes lost to a failing environment or engine.",
    "bough_stage_lost_workers": "Workers of a cluster that were lost and replaced.",
    "bough_training_updated_timestamp_seconds": "When metrics.jsonl was last written, in Unix time.",
    "bough_eval_success_ratio": "Success rate of an evaluated model.",
    "bough_eval_success_low_ratio": "Lower end of the success rate's interval.",
    "bough_eval_success_high_ratio": "Upper end of the success rate's interval.",
    "bough_eval_episodes": "Episodes that the success rate counts.",
    "bough_eval_lost_episodes": "Episodes of the evaluation that were lost and are not counted.",
}
NEWEST_HELP = "Newest value of this metric in metrics.jsonl."
MAX_LABEL = 500
# Prometheus takes a null byte for the end of the text.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
Labels = tuple[tuple[str, str], ...]


class Exposition:
    """Series by metric name. Of two with the same name and labels, the first is kept."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, float]] = {}

    def add(self, name: str, value: Any, **labels: str) -> None:
        """Adds one value. Values that are not numbers, and labels without a value, are left out."""
        if is_finite(value):
            given = tuple((key, _clean(text)) for key, text in labels.items() if text)
            self._series.setdefault(name, {}).setdefault(given, float(value))

    def text(self) -> str:
        """All series, grouped by name as the format requires."""
        lines = []
        for name, series in self._series.items():
            lines.append(f"# HELP {name} {HELP.get(name, NEWEST_HELP)}")
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            for labels, value in series.items():
                inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                lines.append(f"{name}{{{inside}}} {value!r}")
        return "".join(line + "\n" for line in lines)


def metrics(index: Index) -> str:
    """The stages, training metrics and evaluations of all runs."""
    found = Exposition()
    for run in overview(index)["runs"]:
        for stage in run["stages"]:
            labels = _labels(index, run["folder"], stage)
            _stage(found, stage, labels)
            _evaluated(found, stage, labels)
            if stage["training"]:
                _trained(found, index, stage["folder"], labels)
    return found.text()


def metric_name(name: str) -> tuple[str, str]:
    """A metric of `metrics.jsonl` as Prometheus names it, and the part of it that is measured (`margin/loop`)."""
    base, _, part = name.partition("/")
    words = re.sub(r"[^a-zA-Z0-9_]", "_", base)[:100]
    words = re.sub(r"_per_s$", "_per_second", words)
    return f"bough_training_{words}{'_total' if base in COUNTERS else ''}", part


def _labels(index: Index, run: str | None, stage: Mapping[str, Any]) -> dict[str, str]:
    """The run's folder and the stage's name in it. The folder of a single command is a run without stages."""
    if run is None:
        return {"run": index.root.name if stage["folder"] == "." else stage["folder"]}
    return {"run": index.root.name if run == "." else run, "stage": Path(stage["folder"]).name}


def _stage(found: Exposition, stage: Mapping[str, Any], labels: dict[str, str]) -> None:
    for state in STATES:
        found.add("bough_stage_state", int(stage["state"] == state), **labels, verb=stage["verb"], state=state)
    found.add("bough_stage_duration_seconds", stage["seconds"], **labels)
    found.add("bough_stage_lost_episodes", stage["lost"], **labels)
    found.add("bough_stage_lost_workers", stage["report"].get("worker_losses"), **labels)
    for kind in sorted({row["kind"] for row in stage["files"]}):
        rows = [row for row in stage["files"] if row["kind"] == kind]
        success, failure = (sum(row[word] or 0 for row in rows) for word in ("successes", "failures"))
        unknown = sum(row["count"] for row in rows) - success - failure
        for outcome, count in (("success", success), ("failure", failure), ("unknown", unknown)):
            found.add("bough_stage_records", count, **labels, kind=kind, outcome=outcome)


def _trained(found: Exposition, index: Index, folder: str, labels: dict[str, str]) -> None:
    try:
        values, updated = newest(index, folder)
    except (MissingError, OSError):  # removed since the folder was scanned
        return
    found.add("bough_training_updated_timestamp_seconds", updated, **labels)
    for key, value in values.items():
        name, part = metric_name(key)
        found.add(name, value, **labels, part=part)


def _evaluated(found: Exposition, stage: Mapping[str, Any], labels: dict[str, str]) -> None:
    for rate in stage["success"]:
        named = labels | {"model": rate["model"]}
        interval = rate.get("interval") or {}
        found.add("bough_eval_success_ratio", rate.get("mean"), **named)
        found.add("bough_eval_success_low_ratio", interval.get("low"), **named)
        found.add("bough_eval_success_high_ratio", interval.get("high"), **named)
        found.add("bough_eval_episodes", rate.get("episodes"), **named)
        found.add("bough_eval_lost_episodes", rate.get("lost"), **named)


def _clean(text: str) -> str:
    whole = text[:MAX_LABEL].encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair
    return CONTROL.sub("\ufffd", whole)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
