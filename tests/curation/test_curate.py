"""Curation by the settings of a command."""

import json
from pathlib import Path

import pytest

from bough.curation.curate import Curated, curate_demos, curate_pairs
from bough.curation.demonstrations import DemosConfig
from bough.curation.rounds import PairsConfig
from bough.errors import InputError
from bough.ledger import Ledger
from bough.types import Pair
from tests.curation.records import episode, turn


def test_pairs_are_written_with_the_ledgers_of_reading_and_mining(tmp_path: Path):
    config = PairsConfig(file=Path("a"), also=[Path("b")], output=tmp_path / "pairs.jsonl", kinds=["episode"])
    found = curate_pairs(config, lambda _: [episode("good", "x"), episode("bad", "y", success=False)])
    assert found.report == {"reasons": {"success_over_failure": 1}} and found.ledgers[0].kept == found.num_read == 2
    assert found.write(config) == 1
    written = json.loads((tmp_path / "pairs.ledger.json").read_text())
    assert written["sources"] == ["a", "b"] and len(written["ledgers"]) == len(found.ledgers)
    with pytest.raises(InputError, match="nothing to write"):
        Curated[Pair]([], [Ledger("pairs")], 0).write(config)


def test_every_trajectory_gets_its_rewards_and_means_are_over_those_that_have_one():
    filed = [episode("a", turn("x", progress=0.4), success=False), episode("b", "y", success=False), episode("c", "z")]
    common = {"file": Path("a"), "output": Path("demos.jsonl"), "failures": True}
    found = curate_demos(DemosConfig(**common, rewards={"outcome": 1.0, "progress": 0.5}), lambda _: filed)
    assert [one.rewards["total"] for one in found.records] == [0.2, None, 1.5]
    assert found.records[1].info["source"] == filed[1].place and "progress" in found.report["not_scored"]
    assert found.report["rewards"] == {"outcome": 1 / 3, "progress": 0.7, "total": (0.2 + 1.5) / 2}
    found = curate_demos(DemosConfig(**common, rewards={"progress": 1.0}), lambda _: filed[1:2])
    assert found.report["rewards"] == {"progress": None, "total": None}
