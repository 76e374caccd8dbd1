from pathlib import Path

import pytest

from bough.curation.source import read_filed
from bough.data.writer import Writer
from bough.errors import InputError
from bough.ledger import Ledger
from bough.types import Group, Pair
from tests.curation.records import START, episode, turn


def test_a_collections_folder_gives_its_trajectories_and_nothing_else(tmp_path: Path):
    with Writer(tmp_path / "trajectories.jsonl") as writer:
        writer.write(episode("a", "x").trajectory)
        writer.write(episode("b", "x").trajectory)
    (tmp_path / "report.json").write_text('{"episodes": 2}')
    found = read_filed([tmp_path], Ledger("rows"))
    assert [item.trajectory.id for item in found] == ["a", "b"]
    file = str(tmp_path / "trajectories.jsonl")
    assert found[1].place == {"file": file, "line": 2, "trajectory": "b"}


def test_groups_give_their_attempts_and_everything_else_is_counted(tmp_path: Path):
    a, b = episode("a", "x").trajectory, episode("b", "y").trajectory
    with Writer(tmp_path / "mixed.jsonl") as writer:
        writer.write(Group(task=a.task, attempts=[a, b]))
        writer.write(Pair(task=a.task, start=START, chosen=[turn("x")], rejected=[turn("y")]))
    with (tmp_path / "mixed.jsonl").open("a") as file:
        file.write("{}x\n")
    ledger = Ledger("rows")
    found = read_filed([tmp_path / "mixed.jsonl"], ledger)
    assert [item.trajectory.id for item in found] == ["a", "b"] and found[1].line == 1
    assert ledger.dropped == {"wrong_kind": 1, "not_json": 1}


def test_no_trajectory_at_all_is_the_users_business(tmp_path: Path):
    (tmp_path / "none.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match="there is no trajectory"):
        read_filed([tmp_path / "none.jsonl"], Ledger("rows"))
