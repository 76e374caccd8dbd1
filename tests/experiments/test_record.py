import json
from pathlib import Path

from bough.experiments.record import StageRecord, content, fingerprint


def test_nothing_or_nonsense_is_no_record(tmp_path: Path):
    assert StageRecord.read(tmp_path) is None
    whole = {"verb": "sft", "name": "sft", "round": 1, "fingerprint": "f", "inputs": {}}
    bad = [
        {"verb": 1},
        {"goes_on_with": True},
        {"inputs": []},
        {"outputs": {"a": 1}},
        {"seconds": "x"},
        {"finished": 2},
    ]
    for text in ("", "[1]", '{"verb": 1}', "[" * 5000, *(json.dumps(whole | one) for one in bad)):
        (tmp_path / "stage.json").write_text(text)
        assert StageRecord.read(tmp_path) is None
    (tmp_path / "stage.json").write_text(json.dumps(whole))
    assert StageRecord.read(tmp_path) is not None


def test_a_fingerprint_depends_on_verb_settings_and_inputs_not_on_their_order():
    same = fingerprint("sft", {"a": 1, "b": 2}, {"model": "x"})
    assert same == fingerprint("sft", {"b": 2, "a": 1}, {"model": "x"})
    others = [
        fingerprint("dpo", {"a": 1, "b": 2}, {"model": "x"}),
        fingerprint("sft", {"a": 1, "b": 3}, {"model": "x"}),
        fingerprint("sft", {"a": 1, "b": 2}, {"model": "y"}),
    ]
    assert len({same, *others}) == 4


def test_content_is_of_files_and_names_not_of_places(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "a.txt").write_text("hello")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    (tmp_path / "two" / "deep" / "a.txt").rename(tmp_path / "two" / "deep" / "b.txt")
    assert content(tmp_path / "one") != content(tmp_path / "two")
    assert content(tmp_path / "one/deep/a.txt") == content(tmp_path / "two/deep/b.txt")
    assert content(Path("smollm2")) == "smollm2"
