"""`metrics.jsonl`: one line per logged step, readable during the run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.disk import open_file, write_atomically

MAX_LINE = 1 << 20
MAX_STEP = 2**63


class MetricsFile:
    """Appends lines. A run that resumes at step n drops the lines after it: they will come again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [line for line in self.read(path) if line["step"] <= first_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All complete lines; none where there is no file. What is not a step's line is skipped."""
        return list(MetricsFile.each(path))

    @staticmethod
    def each(path: Path) -> Iterator[dict[str, Any]]:
        """The same one by one. Raises OSError for what is not a regular file: a pipe would block."""
        if not path.exists():
            return
        with open_file(path) as file:
            # A longer line is read in pieces, none of which is a step's line.
            for line in iter(lambda: file.readline(MAX_LINE), b""):
                try:
                    values = json.loads(line.decode("utf-8", "replace"))
                except (ValueError, RecursionError):  # cut off by a kill
                    continue
                if isinstance(values, dict) and _is_step(values.get("step")):
                    yield values

    def append(self, values: dict[str, Any]) -> None:
        """One line; numbers that are not finite become null, as JSON has none."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEP
