"""A list of records as the API returns it: it prints as a summary, not as everything that is in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")


class Records(list[R]):
    """Trajectories, pairs or groups.

    `report` has the numbers that the command line would print, `path` the file or folder
    where the records are on disk, None where no output was given.
    """

    def __init__(
        self, records: Iterable[R], summary: str, *, report: dict[str, Any] | None = None, path: Path | None = None
    ) -> None:
        super().__init__(records)
        self.summary, self.report, self.path = summary, report or {}, path

    def __repr__(self) -> str:
        where = f"\nin {self.path}" if self.path else ""
        return f"<{self.summary}{where}>"
