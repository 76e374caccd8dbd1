"""A list of records as the API returns it: it prints as a summary, not as everything that is in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")
SHOWN = (str, int, float)


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


class Facts(dict[str, Any]):
    """Named numbers or texts. It prints as two columns."""

    def __repr__(self) -> str:
        shown = {name.replace("_", " "): _text(value) for name, value in self.items() if isinstance(value, SHOWN)}
        width = max(map(len, shown), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in shown.items())


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
