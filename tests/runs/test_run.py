from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.runs.recipe import Recipe
from bough.runs.record import Record
from bough.runs.run import Run

COUNTING = "tests.environments.worlds:Counting"


def recipe(*stages: Any, **more: Any) -> Recipe:
    return Recipe(name="test", model="tiny", world={"environment": COUNTING}, stages=list(stages), **more)


def played(folder: Path, *stages: Any, **more: Any) -> list[str]:
    lines: list[str] = []
    Run(recipe(*stages, **more), folder).play(lines.append)
    return lines


COLLECT = {"collect": {"model": "expert", "tasks": 3, "name": "expert"}}
SFT = {"sft": {"max_steps": 1, "max_length": 256}}


def test_stages_feed_each_other(tmp_path: Path):
    assert played(tmp_path / "run", COLLECT, {"demos": {}}, SFT) == ["01-expert", "02-demos", "03-sft"]
    records = [Record.read(tmp_path / "run" / name) for name in ("01-expert", "02-demos", "03-sft")]
    assert all(record and record.finished for record in records)
    assert records[1].inputs["file"] == records[0].outputs["trajectories"]  # type: ignore[union-attr]
    assert records[2].inputs["train_file"] == records[1].outputs["demonstrations"]  # type: ignore[union-attr]
    assert (tmp_path / "run/03-sft/final/adapter_model.safetensors").exists()


def test_what_has_not_changed_is_not_run_again_and_what_has_is(tmp_path: Path):
    folder = tmp_path / "run"
    played(folder, COLLECT, {"demos": {}})
    made = (folder / "01-expert/trajectories.jsonl").stat().st_mtime_ns
    assert played(folder, COLLECT, {"demos": {}}) == ["01-expert: done already", "02-demos: done already"]
    lines = played(folder, COLLECT, {"demos": {"max_turns": 2}})
    assert lines == [
        "01-expert: done already",
        "02-demos: what it depends on has changed; starting it anew",
        "02-demos",
    ]
    assert (folder / "01-expert/trajectories.jsonl").stat().st_mtime_ns == made


def test_a_stage_that_was_cut_short_goes_on(tmp_path: Path):
    folder = tmp_path / "run"
    played(folder, COLLECT)
    record = Record.read(folder / "01-expert")
    assert record is not None
    record.finished = False
    record.write(folder / "01-expert")
    lines = (folder / "01-expert/trajectories.jsonl").read_text().splitlines(keepends=True)
    (folder / "01-expert/trajectories.jsonl").write_text(lines[0])
    before = (folder / "01-expert/trajectories.jsonl").stat().st_ino
    assert played(folder, COLLECT) == ["01-expert"]
    assert (folder / "01-expert/trajectories.jsonl").read_text() == "".join(lines)
    assert (folder / "01-expert/trajectories.jsonl").stat().st_ino == before, "it was appended to, not begun anew"


def test_all_problems_are_named_before_anything_runs(tmp_path: Path):
    with pytest.raises(InputError) as error:
        Run(recipe({"colect": {}}, {"sft": {"max_stepz": 1}}, {"demos": {"from": "nowhere"}}), tmp_path / "run")
    problems = "\n".join(error.value.problems)
    assert "colect is no stage; did you mean collect?" in problems
    assert "max_stepz is not a setting; did you mean" in problems
    assert "there is no earlier stage 'nowhere'" in problems
    assert not (tmp_path / "run").exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        played(tmp_path, COLLECT)


def test_a_later_round_plays_other_tasks(tmp_path: Path):
    played(tmp_path / "run", {"repeat": {"rounds": 2, "stages": [COLLECT]}})
    first, second = (
        (tmp_path / "run" / name / "config.yaml").read_text() for name in ("01-expert", "02-expert-round-2")
    )
    assert "\nseed: 0\n" in first and "\nseed: 1\n" in second
