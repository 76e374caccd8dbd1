"""Trajectories with their source, from folders of `bough collect` and from data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.data.base import Sample
from bough.data.reader import Reader
from bough.data.writer import ENDINGS, Writer
from bough.errors import InputError
from bough.files import replacing, write_json
from bough.ledger import Ledger
from bough.types import Group, Pair, Trajectory


class CurationConfig(ReportConfig):
    """Input and output."""

    file: Path = setting(
        positional=True, description="a folder of `bough collect`, or any file or folder of trajectories"
    )
    also: list[Path] = Field([], description="more files or folders, such as an expert's episodes of the same tasks")
    format: str = Field("auto", description="format of the files; `bough data formats` lists them")
    output: Path = setting(short="-o", description="the file to write: .jsonl or .jsonl.zst")
    overwrite: bool = Field(False, description="replace the output file if it exists")


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
    found: list[SourcedTrajectory] = []
    for source in sources:
        reader = Reader(source, format=format, on_error="skip")
        for sample in reader:
            if isinstance(sample, Pair):
                ledger.drop("wrong_kind")
                continue
            for trajectory in sample.attempts if isinstance(sample, Group) else [sample]:
                found.append(SourcedTrajectory(trajectory, reader.place.file, reader.place.line))
        for reason, count in reader.skipped.items():
            ledger.drop(reason, count)
    if not found:
        raise InputError(f"{', '.join(map(str, sources))}: there is no trajectory; {ledger}")
    return found


# Writing curated records with their ledgers next to them; both completely or not at all.


def ledger_path(output: Path) -> Path:
    """The ledger of pairs.jsonl is pairs.ledger.json."""
    ending = next(ending for ending in ENDINGS if output.name.endswith(ending))
    return output.with_name(output.name.removesuffix(ending) + ".ledger.json")


def write_out(output: Path, records: Iterable[Sample], ledgers: Sequence[Ledger], **more: Any) -> int:
    """Writes the records, and their ledgers with `more`; returns the number of records.

    Raises InputError with the ledgers if there are no records.
    """
    with replacing(output) as draft:
        with Writer(draft, batch=1024, batch_s=60) as writer:
            for record in records:
                writer.write(record)
            writer.flush()
        if not writer.written:
            raise InputError(f"there is nothing to write to {output}:", [str(ledger) for ledger in ledgers])
        write_json(ledger_path(output), {"ledgers": [ledger.to_json() for ledger in ledgers], **more})
    return writer.written
