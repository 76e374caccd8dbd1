"""Curation by the settings of a command."""

import json
from pathlib import Path

import pytest

from bough.curation.curate import Curated, curate_pairs
from bough.curation.pairs import PairWork
from bough.curation.rounds import PairsConfig
from bough.errors import InputError
from bough.ledger import Ledger
from bough.types import Pair
from tests.curation.records import episode


def test_pairs_are_written_with_the_ledgers_of_reading_and_mining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forgotten: list[PairWork] = []
    monkeypatch.setattr(PairWork, "forget", lambda self: forgotten.append(self))
    config = PairsConfig(file=Path("a"), also=[Path("b")], output=tmp_path / "pairs.jsonl", kinds=["episode"])
    found = curate_pairs(config, lambda _: [episode("good", "x"), episode("bad", "y", success=False)])
    assert found.report == {"reasons": {"success_over_failure": 1}} and found.ledgers[0].kept == found.num_read == 2
    assert not forgotten, "the journal is needed until the pairs are written"
    assert found.write(config) == 1 and len(forgotten) == 1
    written = json.loads((tmp_path / "pairs.ledger.json").read_text())
    assert written["sources"] == ["a", "b"] and len(written["ledgers"]) == len(found.ledgers)


def test_without_records_nothing_counts_as_written(tmp_path: Path):
    done: list[bool] = []
    empty = Curated[Pair]([], [Ledger("pairs")], 0, written=lambda: done.append(True))
    with pytest.raises(InputError, match="nothing to write"):
        empty.write(PairsConfig(file=Path("a"), output=tmp_path / "pairs.jsonl"))
    assert not done
