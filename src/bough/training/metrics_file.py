"""`metrics.jsonl`: one line per logged step, readable during the run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bough.disk import write_atomically


class MetricsFile:
    """Appends lines. A run that resumes at step n drops the lines after it: they will come again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [line for line in self.read(path) if line["step"] <= first_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All complete lines; none where there is no file. What is not a step's line is skipped."""
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                values = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            if isinstance(values, dict) and isinstance(values.get("step"), int):
                found.append(values)
        return found

    def append(self, values: dict[str, Any]) -> None:
        """One line; numbers that are not finite become null, as JSON has none."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")
