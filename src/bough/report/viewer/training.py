"""The curves of a training run: the lines of `metrics.jsonl` that a page does not have yet."""

from __future__ import annotations

import json
from typing import Any

from bough.experiments.lineage import FILE_NAME, Pedigree, read_pedigree
from bough.files import open_file
from bough.ledger import is_finite
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import read_json, stage_settings, state_of

# Read in pieces, so that a run of a million steps opens too.
MAX_PIECE = 8 << 20
MAX_METRICS = 400
# Larger ones are not exact in a browser.
MAX_STEP = 2**53


def training(index: Index, folder: str, after: int) -> dict[str, Any]:
    """The metrics after byte `after`, where to continue, and whether there are more."""
    if folder not in index.contents.training:
        raise MissingError("there is no such training run in the folder")
    file = index.root.inside(index.root.path / folder / "metrics.jsonl")
    if file is None:
        raise MissingError("the run's metrics are gone")
    size = file.stat().st_size
    # A run that resumes drops lines: what the page has is then no longer what is on file.
    begin = after if 0 <= after <= size else 0
    with open_file(file) as stream:
        stream.seek(begin)
        piece = stream.read(MAX_PIECE)
    whole = piece[: piece.rfind(b"\n") + 1]
    answer: dict[str, Any] = {
        "folder": folder,
        "from": begin,
        "next": begin + len(whole),
        "more": begin + len(piece) < size,
        "state": state_of(index, folder),
        "lines": [line for text in whole.splitlines() if (line := _line(text)) is not None],
    }
    if begin == 0:
        here = f"{index.root.path}/"  # paths inside the folder that is shown are relative to it
        answer["settings"] = {
            key: value.removeprefix(here) if isinstance(value, str) else value
            for key, value in stage_settings(index, folder).items()
        }
    return answer


def _line(text: bytes) -> dict[str, float] | None:
    """The finite numbers of a line that has a step."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not is_finite(values.get("step")) or abs(values["step"]) > MAX_STEP:
        return None
    numbers = {key: value for key, value in values.items() if is_finite(value)}
    return dict(list(numbers.items())[:MAX_METRICS])


# Evolutions: the members of every generation, who descends from whom, and the winner's two measurements.

# Metrics whose values are between 0 and 1.
RATES = ("accuracy", "success")
MAX_LINEAGE = 32 << 20


def evolution(index: Index, folder: str) -> dict[str, Any]:
    """All members as far as they are measured, and the winner if there is one yet."""
    file = index.root.inside(index.root.path / folder / FILE_NAME)
    if folder not in index.contents.evolutions or file is None:
        raise MissingError("there is no such evolution in the folder")
    try:
        if file.stat().st_size > MAX_LINEAGE:
            raise MissingError("the evolution's lineage is too large to read")
        found = read_pedigree(file)
    except OSError as error:
        raise MissingError(f"the evolution's lineage cannot be read: {error.strerror}") from None
    winner = _winner(read_json(index, f"{folder}/report.json"), found)
    metric = winner["metric"] if winner else _metric(stage_settings(index, folder))
    last = [one for one in found.members if one.generation == found.last]
    leader = winner["name"] if winner else min(last, key=lambda one: one.place).name if last else ""
    return {
        "folder": folder,
        "state": state_of(index, folder),
        "metric": metric,
        "rate": metric in RATES,
        "generations": found.last + 1,
        "members": [member.model_dump() for member in found.members],
        "damaged": [{"line": one.line, "why": one.why} for one in found.damaged],
        "left_out": found.left_out,
        "winner": winner,
        "leader": leader,
        "pedigree": [{"generation": one.generation, "name": one.name} for one in found.ancestors(leader, found.last)],
    }


def _winner(report: dict[str, Any], found: Pedigree) -> dict[str, Any] | None:
    """What the report says of the winner, if it is a member of the last generation: a resumed run has an old report."""

    def number(value: Any) -> Any:
        return value if is_finite(value) else None

    def measured(score: Any) -> dict[str, Any]:
        score = score if isinstance(score, dict) else {}
        interval = score.get("interval")
        whole = isinstance(interval, list) and len(interval) == 2 and all(map(is_finite, interval))
        fitness, tasks = number(score.get("fitness")), number(score.get("tasks"))
        return {"fitness": fitness, "interval": interval if whole else None, "tasks": tasks}

    about, metric = report.get("winner"), report.get("metric")
    name = about.get("name") if isinstance(about, dict) else None
    if not any(member.name == name and member.generation == found.last for member in found.members):
        return None
    return {
        "name": name,
        "metric": metric[:100] if isinstance(metric, str) else "fitness",
        "selected": measured(report.get("selected")),
        "untouched": measured(report.get("untouched")),
        "empty_updates": number(report.get("empty_updates")) or 0,
        **{key: number(report.get(key)) for key in ("shrinkage", "updates", "tokens_computed")},
    }


def _metric(settings: dict[str, Any]) -> str:
    """What fitness is, before there is a report."""
    given, named = settings.get("metric"), settings.get("environment")
    if isinstance(given, str) and given != "auto":
        return given[:100]
    return "success" if named else "loss" if settings.get("method") == "sft" else "accuracy"
