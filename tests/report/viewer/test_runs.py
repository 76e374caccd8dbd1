import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from bough.report.viewer.index import Index
from bough.report.viewer.runs import overview
from tests.report.viewer.samples import pair, trajectory, write

Make = Callable[[Path], Index]


def test_a_run_with_its_stages_and_what_each_was_made_of(folder: Path, make_index: Make):
    found = overview(make_index(folder))
    [run] = found["runs"]
    assert (run["name"], run["recipe"]["model"], run["recipe"]["environment"]) == ("played", "smollm2", "household")
    stages = {stage["name"]: stage for stage in run["stages"]}
    assert list(stages) == [
        "01-demonstrations",
        "02-rollouts",
        "03-pairs",
        "04-groups",
        "05-dpo",
        "06-eval",
        "07-sampled",
    ]
    assert stages["05-dpo"]["made_of"] == [
        {"input": "train_file", "stage": "03-pairs", "value": "d3"},
        {"input": "model", "stage": None, "value": "smollm2"},
    ]
    assert stages["06-eval"]["made_of"][0]["stage"] == "05-dpo"
    assert (stages["05-dpo"]["state"], stages["05-dpo"]["seconds"], stages["05-dpo"]["training"]) == (
        "done",
        12.5,
        True,
    )
    assert stages["02-rollouts"]["files"][0]["count"] == 9
    assert stages["06-eval"]["note"].startswith("not significant")
    assert stages["07-sampled"]["report"]["rescored_tokens"] == 75
    assert found["counts"]["trajectory"] == 3 + 9 + 2 * 6 + 1


def test_success_goes_with_its_interval(folder: Path, make_index: Make):
    [run] = overview(make_index(folder))["runs"]
    [expert, random] = run["stages"][5]["success"]
    assert (expert["model"], expert["mean"], expert["episodes"], random["mean"]) == ("expert", 1.0, 6, 0.0)
    # Wilson for 0 of 6 at 95%: 1.96² / (6 + 1.96²).
    assert abs(random["interval"]["high"] - 1.959964**2 / (6 + 1.959964**2)) < 1e-6


def test_a_stage_that_was_cut_short_is_told_from_one_that_runs(tmp_path: Path, make_index: Make):
    stage = tmp_path / "run/01-sft"
    stage.mkdir(parents=True)
    (stage / "stage.json").write_text(json.dumps({"verb": "sft", "finished": False}))
    (stage / "metrics.jsonl").write_text("")
    index = make_index(tmp_path / "run")
    assert overview(index)["runs"][0]["stages"][0]["state"] == "running"
    tomorrow = time.time() + 86_400  # the clock was put back since
    for file in stage.iterdir():
        os.utime(file, (1, 1))
    assert overview(index)["runs"][0]["stages"][0]["state"] == "interrupted"
    os.utime(stage / "stage.json", (tomorrow, tomorrow))
    assert overview(index)["runs"][0]["stages"][0]["state"] == "interrupted"
    (stage / "metrics.jsonl").touch()
    assert overview(index)["runs"][0]["stages"][0]["state"] == "running"


def test_the_stages_of_the_recipe_that_are_to_come_are_named(tmp_path: Path, make_index: Make):
    (tmp_path / "run/01-collect").mkdir(parents=True)
    (tmp_path / "run/01-collect/stage.json").write_text(json.dumps({"verb": "collect", "finished": True}))
    again = {"repeat": {"rounds": 2, "stages": [{"dpo": {}}]}}
    recipe = {"name": "x", "stages": [{"collect": {}}, {"sft": {"max_steps": 3}}, again]}
    (tmp_path / "run/recipe.yaml").write_text(json.dumps(recipe))
    [run] = overview(make_index(tmp_path / "run"))["runs"]
    assert [(stage["name"], stage["state"]) for stage in run["stages"]] == [
        ("01-collect", "done"), ("02-sft", "pending"), ("03-dpo", "pending"), ("04-dpo-round-2", "pending"),
    ]  # fmt: skip


def test_loose_files_are_shown_too(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), pair(["a"], ["b"]))
    (tmp_path / "run/recipe.yaml").write_text("name: never run\n")
    found = overview(make_index(tmp_path / "run"))
    [run] = found["runs"]
    assert run["recipe"] is None and run["stages"][0]["verb"] == "data" and run["stages"][0]["state"] == "done"
    assert found["counts"] == {"trajectory": 1, "pair": 1, "group": 0}


def test_records_that_are_not_what_they_should_be_break_nothing(tmp_path: Path, make_index: Make):
    for number, text in enumerate(
        ["[1, 2]", "nonsense", '{"verb": [], "inputs": 3, "outputs": [1], "seconds": "x", "note": {}}', "[" * 5000]
    ):
        stage = tmp_path / f"run/0{number}-x"
        stage.mkdir(parents=True)
        (stage / "stage.json").write_text(text)
        (stage / "results.json").write_text(text)
        (stage / "report.json").write_text(text)
    (tmp_path / "run/recipe.yaml").write_text("[a, b]")
    [run] = overview(make_index(tmp_path / "run"))["runs"]
    assert [stage["name"] for stage in run["stages"]] == ["00-x", "01-x", "02-x", "03-x"]
    assert all(stage["success"] == [] for stage in run["stages"])
