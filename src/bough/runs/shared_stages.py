"""Finished stages that several runs have in common, found by their fingerprint.

The fingerprint covers the command, the settings with the seed, and the content of the
inputs, so a stage with the same fingerprint in another run has the same result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bough.disk import locked, put_in_place, read_json, remove, write_json
from bough.errors import BoughError
from bough.runs.record import StageRecord

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
