"""Records hold no absolute path, and what they name is found again."""

from pathlib import Path

import pytest

from bough.files import nearby, without_absolute


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("there", "here"):
        (tmp_path / name / "runs" / "sft" / "final").mkdir(parents=True)
        (tmp_path / name / "runs" / "dpo").mkdir()
    return tmp_path


def test_a_path_is_looked_for_beside_the_folder_that_names_it(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs / "there")
    assert nearby("runs/sft/final", runs / "here/runs/dpo") == runs / "here/runs/sft/final"


def test_a_path_from_another_machine_or_folder_is_found_by_its_end(runs: Path):
    for written in ("/home/someone/work/runs/sft/final", "../../runs/sft/final"):
        assert nearby(written, runs / "here/runs/dpo") == runs / "here/runs/sft/final"


def test_a_last_name_alone_does_not_do(runs: Path):
    (runs / "here/runs/final").mkdir()
    assert nearby("elsewhere/final", runs / "here/runs/dpo") is None


def test_a_path_that_leads_somewhere_from_here_is_taken(runs: Path, monkeypatch: pytest.MonkeyPatch):
    (runs / "data.jsonl").write_text("")
    monkeypatch.chdir(runs)
    assert nearby("data.jsonl", runs / "here/runs/dpo") == Path("data.jsonl")
    assert nearby("none.jsonl", runs / "here/runs/dpo") is None


def test_a_path_relative_to_the_folder_that_names_it_is_found(runs: Path):
    (runs / "here/data.jsonl").write_text("")
    assert nearby("../../data.jsonl", runs / "here/runs/dpo") == runs / "here/runs/dpo/../../data.jsonl"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("/home/ann/work/a.jsonl", "a.jsonl"),
        ("/home/ann/data/a.jsonl", "../data/a.jsonl"),
        ("/srv/runs/sft/final", "../sft/final"),
        ("/mnt/disk/models/base", "models/base"),
        ("/mnt/worlds.py:Guess", "mnt/worlds.py:Guess"),
        ("runs/sft/final", "runs/sft/final"),
        ("org/name", "org/name"),
        (["/home/ann/work/a", 3, None, {"b": "/srv/runs/b"}], ["a", 3, None, {"b": "../b"}]),
    ],
)
def test_an_absolute_path_is_written_relative_to_what_is_near_it(given: object, written: object):
    assert without_absolute(given, Path("/home/ann/work"), Path("/srv/runs/dpo")) == written


def test_the_nearer_of_two_folders_counts_wherever_the_working_directory_is():
    clone, run = Path("/tmp/clone"), Path("/tmp/pytest/one/runs/second")
    assert without_absolute("/tmp/pytest/one/data/a.jsonl", clone, run) == "../../data/a.jsonl"
    assert without_absolute("/tmp/clone/a.jsonl", clone, run) == "a.jsonl"
