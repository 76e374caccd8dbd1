from pathlib import Path

import pytest

from bough.cards.places import nearby, without_places


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


def test_folders_of_the_machine_are_not_named():
    places = [Path("/home/ann"), Path("/home/ann/work"), Path("/")]
    text = "in /home/ann/work/x and /home/ann, not in /home/anna, /home/ann.old, a/home/ann, / or /srv"
    assert without_places(text, places) == "in …/x and …, not in /home/anna, /home/ann.old, a/home/ann, / or /srv"
