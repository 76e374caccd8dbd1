"""The record of a stage: its inputs, its outputs, and whether it is finished.

The fingerprint of a stage covers its command, its settings and the content of its inputs.
A stage that finished with the same fingerprint is skipped; an unfinished one is resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bough.errors import BoughError, InputError
from bough.evaluation.results import Results
from bough.files import MAX_JSON, locked, put_in_place, read_json, read_small, remove, text_digest, write_json
from bough.ledger import is_finite


@dataclass
class StageRecord:
    """The record of a stage, in `stage.json` of its folder.

    `note` is the decision of a gate. `goes_on_with` is the model that the run continues with after an
    evaluation: a path inside the run, or the recipe's own model.
    """

    verb: str
    name: str
    round: int
    fingerprint: str
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    seconds: float = 0.0
    note: str = ""
    goes_on_with: str | None = None

    def write(self, folder: Path) -> None:
        write_json(folder / "stage.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> StageRecord | None:
        """The record in a stage's folder; None if there is none or it cannot be read."""
        try:
            return TypeAdapter(cls).validate_json(read_small(folder / "stage.json", MAX_JSON), strict=True)
        except (OSError, ValueError):
            return None


def fingerprint(verb: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """A digest of everything that determines a stage's result."""
    return text_digest(json.dumps([verb, settings, inputs], sort_keys=True, default=str), size=8)


def content(path: Path) -> str:
    """A digest of a file, or of a folder's files with their names; for a name that is not a file, the name itself.

    README.md does not count: a model card may be added to the weights later.
    """
    if path.is_dir():
        hasher = hashlib.sha256()
        for file in sorted(found for found in path.rglob("*") if found.is_file() and found.name != "README.md"):
            hasher.update(os.fsencode(file.relative_to(path)) + f"\0{_digest(file)}\n".encode())
        return hasher.hexdigest()[:16]
    return _digest(path) if path.is_file() else str(path)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


# Finished stages that several runs have in common, found by their fingerprint.
# The fingerprint covers the command, the settings with the seed, and the content of the inputs, so a stage with the
# same fingerprint in another run has the same result.

INDEX = "stages"
# Hidden files belong to a process, not to the result: its lock, and what it is writing at this moment.
LEFT_OUT = (".*",)


class SharedStages:
    """The finished stages of the runs inside `folder`; `stages/FINGERPRINT.json` says where each one is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / INDEX

    @contextmanager
    def claimed(self, fingerprint: str) -> Iterator[None]:
        """Only one process at a time works on a stage; the others wait and then find it finished."""
        with locked(self.index / f"{fingerprint}.lock", wait=True):
            yield

    def add(self, fingerprint: str, stage: Path) -> None:
        """Makes a finished stage known to the other runs."""
        entry = self.index / f"{fingerprint}.json"
        if not entry.exists():
            write_json(entry, {"stage": stage.relative_to(self.folder).as_posix()})

    def find(self, fingerprint: str, artefact: str) -> Path | None:
        """The folder of a finished stage; None if there is none or it has changed since."""
        entry = self.index / f"{fingerprint}.json"
        try:
            stage = self.folder / str(read_json(entry)["stage"])
            record = StageRecord.read(stage)
            whole = record is not None and record.finished and record.fingerprint == fingerprint
            if whole and (stage / artefact).exists() and stage.resolve().is_relative_to(self.folder.resolve()):
                return stage
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        remove(entry)  # the next process that finishes the stage writes a new one
        return None

    def copy(self, source: Path, target: Path, *, name: str, round: int = 1) -> None:
        """Puts a finished stage into another run's folder, whole or not at all, under that run's name for it.

        Files become hard links where the file system has them: a finished stage is replaced, never changed.
        """
        draft = target.with_name(f".{target.name}.draft")
        try:
            remove(draft)
            target.parent.mkdir(parents=True, exist_ok=True)
            ignored = shutil.ignore_patterns(*LEFT_OUT)
            shutil.copytree(source, draft, symlinks=True, ignore=ignored, copy_function=_link)
            record = StageRecord.read(draft)
            assert record is not None
            # The gate of the run decides what it continues with.
            replace(record, name=name, round=round, note="", goes_on_with=None).write(draft)
            put_in_place(draft, target)
        except (OSError, shutil.Error) as error:
            raise BoughError(f"{target}: cannot be taken from {source}: {error}") from None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


# The result of a stage in a few numbers, for trackers, and the files with the details.

REPORT_FILES = ("report.json", "results.json", "*ledger.json")


def numbers_of(folder: Path) -> dict[str, float]:
    """The success rate of an evaluation with its interval; for collections and curated data, the counts.

    The files may come from elsewhere, where anything can have been changed: what is no finite number is left out.
    """
    found = _evaluated(folder)
    if not found:
        found = _mapping(_json(folder / "report.json"))
        found["lost"] = len(_mapping(found.get("lost"))) or None
        for file in sorted(folder.glob("*ledger.json")):
            ledgers = _mapping(_json(file)).get("ledgers")
            for ledger in map(_mapping, ledgers if isinstance(ledgers, list) else ()):
                found |= {f"{ledger.get('item')}_{key}": ledger.get(key) for key in ("in", "kept")}
    return {name: value for name, value in found.items() if is_finite(value)}


def files_of(folder: Path) -> list[Path]:
    return [file for pattern in REPORT_FILES for file in sorted(folder.glob(pattern))]


def _evaluated(folder: Path) -> dict[str, Any]:
    try:
        results = Results.read(folder)
    except InputError:
        return {}
    found: dict[str, Any] = {}
    for number, model in enumerate(results.models, 1):
        report = _mapping(results.reports.get(model.name))
        success = _mapping(report.get("success"))
        interval = _mapping(success.get("interval"))
        if success.get("mean") is None:
            continue
        values = {
            "success": success["mean"], "success_low": interval.get("low"), "success_high": interval.get("high"),
            "episodes": success.get("episodes"), "lost": report.get("lost") or None,
        }  # fmt: skip
        end = f"_{number}" if len(results.models) > 1 else ""
        found |= {f"{name}{end}": value for name, value in values.items()}
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(file: Path) -> Any:
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None
