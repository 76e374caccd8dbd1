"""The benchmark of populations: which numbers a line of its table has."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = {"rounds": 1, "start": 8, "episodes": 1, "group": 2, "steps": 1, "rank": 2, "budget": 1024}


def test_without_passes_only_one_member_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import population

    taken = iter([1.25, 1.0, 1.5, 2.0, 1.5])  # one member together and by itself, then a time for each line
    monkeypatch.setattr(population, "seconds_of", lambda *_, **__: next(taken))
    lines = [("sft", 1), ("sft", 2), ("copies", 2), ("dpo", 2)]
    written: list[str] = []
    options = Namespace(model="tiny", lines=lines, passes=0, profile=False, checkpointing=False, **SMALL)
    population.measure(options, written.append)
    rows = [line.split(" | ") for line in written if line.startswith(("| sft", "| dpo"))]
    assert [row[1:5] for row in rows] == [
        ["1", "1.250", "1.000", "1.2"],
        ["2", "1.500", "", "1.5"],
        ["2", "", "2.000", ""],
        ["2", "1.500", "", ""],
    ]
    assert [bool(row[6]) for row in rows] == [True, False, True, False]
