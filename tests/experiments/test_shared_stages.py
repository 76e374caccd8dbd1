import json
import shutil
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.experiments.recipe import Recipe
from bough.experiments.record import SharedStages, StageRecord
from bough.experiments.run import Run

COUNTING = "tests.environments.worlds:Counting"


def stage(folder: Path, *, finished: bool = True) -> Path:
    """A stage with one file, a folder, a lock and a file that is being written."""
    (folder / "final").mkdir(parents=True)
    (folder / "final/weights").write_text("w")
    (folder / "data.jsonl").write_text("1")
    (folder / ".lock").touch()
    (folder / ".stage.json.4239.json").touch()
    StageRecord("demos", "demos", 1, "abc", {}, finished=finished, note="kept", goes_on_with="x").write(folder)
    return folder


def test_a_finished_stage_is_found_and_linked_without_hidden_files_and_decisions(tmp_path: Path):
    shared = SharedStages(tmp_path)
    source, target = stage(tmp_path / "runs/a/01-demos"), tmp_path / "runs/b/01-demos"
    assert shared.find("abc", "data.jsonl") is None
    shared.add("abc", source)
    assert shared.find("abc", "data.jsonl") == source
    (target.parent / ".01-demos.draft").mkdir(parents=True)  # killed while it was copied
    (target.parent / ".01-demos.draft/half").touch()
    shared.copy(source, target, name="mine", round=2)
    assert sorted(path.name for path in target.iterdir()) == ["data.jsonl", "final", "stage.json"]
    assert (target / "final/weights").samefile(source / "final/weights")
    record, before = StageRecord.read(target), StageRecord.read(source)
    assert record is not None and record.finished and (record.note, record.goes_on_with) == ("", None)
    assert (record.name, record.round) == ("mine", 2)
    assert before is not None and before.note == "kept", "the record is the run's own"
    assert [path.name for path in target.parent.iterdir()] == ["01-demos"]


@pytest.mark.parametrize("damage", ["removed", "unfinished", "other", "no artefact", "garbage", "outside"])
def test_an_entry_that_no_longer_holds_is_dropped(tmp_path: Path, damage: str):
    shared, entry = SharedStages(tmp_path / "sweep"), tmp_path / "sweep/stages/abc.json"
    source = stage(tmp_path / "sweep/runs/a/01-demos", finished=damage != "unfinished")
    shared.add("abc", source)
    if damage == "removed":
        shutil.rmtree(source)
    elif damage == "other":
        StageRecord("demos", "demos", 1, "def", {}, finished=True).write(source)
    elif damage == "no artefact":
        (source / "data.jsonl").unlink()
    elif damage == "garbage":
        entry.write_text("[]")
    elif damage == "outside":
        stage(tmp_path / "elsewhere")
        entry.write_text(json.dumps({"stage": "../elsewhere"}))
    assert shared.find("abc", "data.jsonl") is None
    good = stage(tmp_path / "sweep/runs/b/01-demos")
    shared.add("abc", good)
    assert shared.find("abc", "data.jsonl") == good


def test_a_stage_that_cannot_be_copied_is_an_error_that_names_both(tmp_path: Path):
    with pytest.raises(BoughError, match=r"b: cannot be taken from .*nowhere"):
        SharedStages(tmp_path).copy(tmp_path / "nowhere", tmp_path / "b", name="b")


def test_a_run_takes_what_another_has_finished_and_computes_the_rest(tmp_path: Path):
    shared, lines = SharedStages(tmp_path), list[str]()

    def play(name: str, longest: int) -> None:
        stages = [{"collect": {"model": "expert", "tasks": 2}}, {"demos": {"longest": longest}}]
        recipe = Recipe(name="test", model="tiny", defaults={"environment": COUNTING}, stages=stages)
        Run(recipe, tmp_path / "runs" / name, shared=shared).play(lines.append)

    play("a", 5)
    play("b", 4)
    assert lines == ["01-collect", "02-demos", "01-collect: the same as a/01-collect", "02-demos"]
    lines.clear()
    shutil.rmtree(tmp_path / "stages")  # killed before the stage was made known
    play("a", 5)
    play("c", 5)
    assert lines[2:] == ["01-collect: the same as a/01-collect", "02-demos: the same as a/02-demos"]
