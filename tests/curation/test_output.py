import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.curation.source import write_out
from bough.data.reader import read
from bough.errors import InputError
from bough.ledger import Ledger
from bough.types import Trajectory
from tests.curation.records import episode

RECORDS = [episode("a", "x").trajectory, episode("b", "y").trajectory]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.zst"])
def test_records_and_ledger_stand_beside_each_other(tmp_path: Path, name: str):
    ledger = Ledger("rows")
    ledger.keep(2)
    ledger.drop("bad")
    assert write_out(tmp_path / name, RECORDS, [ledger], sources=["x"]) == 2
    assert list(read(tmp_path / name)) == RECORDS
    assert json.loads((tmp_path / "out.ledger.json").read_text()) == {
        "ledgers": [{"item": "rows", "in": 3, "kept": 2, "dropped": {"bad": 1}}],
        "sources": ["x"],
    }
    assert {path.name for path in tmp_path.iterdir()} == {name, "out.ledger.json"}


def test_a_failure_leaves_what_was_there(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    write_out(output, RECORDS[:1], [Ledger("rows")])
    before = output.read_text()

    def breaks() -> Iterator[Trajectory]:
        yield RECORDS[1]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_out(output, breaks(), [Ledger("rows")])
    assert output.read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", "out.ledger.json"}


def test_nothing_to_write_says_what_became_of_everything(tmp_path: Path):
    ledger = Ledger("failures")
    ledger.drop("no_success_came_by", 3)
    with pytest.raises(InputError, match="3 no_success_came_by"):
        write_out(tmp_path / "out.jsonl", [], [ledger])
    assert list(tmp_path.iterdir()) == []
