import json
from pathlib import Path
from typing import Any

import pytest

from bough.experiments import lineage
from bough.experiments.lineage import read_pedigree
from tests.experiments.family import FAMILY, line


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "lineage.jsonl"
    file.write_text("".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in lines))
    return file


def test_ancestors_come_with_the_fitness_they_were_selected_by(tmp_path: Path):
    found = read_pedigree(written(tmp_path, *FAMILY))
    assert found.last == 2 and found.damaged == []
    ancestors = found.ancestors("g2-1", 2)
    assert [(one.name, one.generation, one.fitness) for one in ancestors] == [
        ("g0-1", 0, 0.5),
        ("g1-1", 1, 0.75),  # its own parent is g0-1
        ("g2-1", 2, 0.875),
    ]
    assert [one.name for one in found.ancestors("g0-0", 1)] == ["g0-0"]
    # Its parent is that of the generation before its birth, however old it is.
    assert [(one.name, one.generation) for one in found.ancestors("g1-1", 2)] == [("g0-1", 0), ("g1-1", 2)]
    assert found.ancestors("absent", 2) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("nonsense\n", "Invalid JSON"),
        ("[1]\n", "an object"),
        (line(0, "x", 0.5) | {"name": 3}, "name: "),
        (line(0, "", 0.5), "name: "),
        ({key: value for key, value in line(0, "x", 0.5).items() if key != "settings"}, "settings: "),
        (line(0, "x", float("nan")), "fitness: "),
        (line(0, "x", 0.5, born=1), "born after its generation"),
        (line(10**6, "x", 0.5), "generation: "),
        (line(0, "x", 0.5, settings={"beta": 10**400}), "settings.beta: "),
        (line(0, "x", 0.5, settings={"beta": [1]}), "settings.beta: "),
        (line(0, "x", 0.5, place=0), "place: "),
        (line(0, "g0-0", 0.5), "g0-0 is already a member of generation 0"),
        ('{"generation": 0, "na', "Invalid JSON"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path, bad: Any, why: str):
    found = read_pedigree(written(tmp_path, FAMILY[0], "", FAMILY[1], bad))
    assert [one.name for one in found.members] == ["g0-1", "g0-0"]
    [damaged] = found.damaged
    assert damaged.line == 3 and why in damaged.why


def test_a_very_long_lineage_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lineage, "MAX_MEMBERS", 2)
    monkeypatch.setattr(lineage, "MAX_NAMED", 1)
    found = read_pedigree(written(tmp_path, *FAMILY, "a\n", "b\n"))
    assert (len(found.members), len(found.damaged), found.left_out) == (2, 1, len(FAMILY) - 2 + 1)
