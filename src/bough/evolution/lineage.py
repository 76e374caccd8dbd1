"""`lineage.jsonl`: one line per member and generation, with its parent, mutation, settings and fitness.

    {"generation": 1, "name": "g1-3", "born": 1, "parent": "g0-5", "mutation": {"kind": "hyper_parameter",
     "setting": "beta", "before": 0.1, "after": 0.12}, "settings": {"beta": 0.12}, "rank": 16, "step": 40,
     "loss": 0.61, "fitness": 0.72, "interval": [0.6, 0.81], "tasks": 64, "lost": 0, "place": 1, "lives": true,
     "children": 3}

`place` is its place by fitness, `lives` whether it is a member of the next generation, `children` how
many of its children are. Both are missing in the last generation.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bough.disk import open_file, write_atomically
from bough.evolution.generation import Generation
from bough.evolution.selection import Place, Scores, ranked

FILE_NAME = "lineage.jsonl"
MAX_LINE = 1 << 20


def generation_lines(generation: Generation, scores: Scores, places: Sequence[Place] | None) -> list[dict[str, Any]]:
    """The lines of a generation, fittest first; `places` are those of the next one, None if there is none."""
    lives = {place.member for place in places or () if place.lives}
    children = Counter(place.member for place in places or () if not place.lives)
    lines = []
    for number, name in enumerate(ranked(scores), 1):
        loss = generation.losses.get(name)
        line: dict[str, Any] = {"generation": generation.number, **generation.individual(name).described()}
        line |= {"loss": loss if loss is not None and math.isfinite(loss) else None, **scores[name].to_json()}
        line["place"] = number
        if places is not None:
            line |= {"lives": name in lives, "children": children[name]}
        lines.append(line)
    return lines


def add_generation(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Writes the lines of a generation after those of the generations before it; what else is there is dropped."""
    number = lines[0]["generation"]
    before = [line for line in read_lineage(path) if line["generation"] < number]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in [*before, *lines]))


def read_lineage(path: Path) -> list[dict[str, Any]]:
    """All lines; none where there is no file. What is not a member's line is skipped."""
    if not path.exists():
        return []
    found = []
    with open_file(path) as file:
        for line in iter(lambda: file.readline(MAX_LINE), b""):
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict) and isinstance(values.get("generation"), int):
                found.append(values)
    return found
