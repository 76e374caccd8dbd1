"""`metrics.jsonl`: one line a logged step, readable while the run goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bough.disk import write_atomically


class MetricsFile:
    """Appends lines. A run that resumes at step n forgets the lines behind it: they will come again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [line for line in self.read(path) if line["step"] <= first_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All whole lines; none where there is no file."""
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off by a kill
                continue
        return found

    def append(self, values: dict[str, Any]) -> None:
        """One line; numbers that are not finite become null, as JSON has none."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")
