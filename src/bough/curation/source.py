"""Trajectories with their source, from folders of `bough collect` and from data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from bough.errors import InputError
from bough.ledger import Ledger
from bough.trajectories.reader import Reader
from bough.types import Group, Pair, Trajectory


@dataclass(frozen=True)
class SourcedTrajectory:
    """A trajectory, and the file and line it was read from."""

    trajectory: Trajectory
    file: str
    line: int

    @property
    def place(self) -> dict[str, JsonValue]:
        """The source as it is written to `info`."""
        return {"file": self.file, "line": self.line, "trajectory": self.trajectory.id}


def read_filed(sources: Iterable[Path], ledger: Ledger, *, format: str = "auto") -> list[SourcedTrajectory]:
    """Every trajectory of `sources`, including the attempts of groups.

    Rows that cannot be used are dropped in `ledger`; the caller keeps or drops the rest.
    """
    found = [filed for source in sources for filed in _read(source, ledger, format)]
    if not found:
        raise InputError(f"{', '.join(map(str, sources))}: there is no trajectory; {ledger}")
    return found


def _read(source: Path, ledger: Ledger, format: str) -> Iterator[SourcedTrajectory]:
    reader = Reader(source, format=format, on_error="skip")
    for sample in reader:
        if isinstance(sample, Pair):
            ledger.drop("wrong_kind")
            continue
        for trajectory in sample.attempts if isinstance(sample, Group) else [sample]:
            yield SourcedTrajectory(trajectory, reader.place.file, reader.place.line)
    for reason, count in reader.skipped.items():
        ledger.drop(reason, count)
