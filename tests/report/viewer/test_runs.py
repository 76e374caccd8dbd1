import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.evaluation.intervals import wilson
from bough.evaluation.results import ModelResult, Outcome, Results
from bough.report.viewer import runs as module
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import evaluation, evolution, overview, rates, training
from tests.evaluation.samples import result
from tests.experiments.family import FAMILY, REPORT, line
from tests.report.viewer.run_folder import LOSSES
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


def results(folder: Path, solved: list[bool], seed: int = 0, name: str = "m") -> None:
    outcomes = [
        Outcome(task=f"t{n}", digest="d", success=one, stop=None if one else "loop") for n, one in enumerate(solved)
    ]
    folder.mkdir(parents=True)
    Results(environment="household", seed=seed, models=[ModelResult(name=name, outcomes=outcomes)]).write(
        folder / "results.json"
    )


def test_a_played_evaluation_with_links_to_its_episodes(folder: Path, make_index: Make):
    found = evaluation(make_index(folder), "06-eval")
    assert [model["name"] for model in found["models"]] == ["expert", "random"]
    assert found["models"][1]["file"] == "06-eval/models/random/trajectories.jsonl"
    assert found["models"][1]["report"]["failures"] == {"max_turns": 6}
    [comparison] = found["comparisons"]
    # All six tasks lost: McNemar's exact p is 2 / 2**6.
    assert comparison["success"]["mean"] == -1.0 and comparison["success"]["p"] == pytest.approx(2 / 64)


def test_lost_episodes_are_told_wherever_episodes_are_counted(tmp_path: Path, make_index: Make):
    (tmp_path / "run/a").mkdir(parents=True)
    model = result("m", "1 1 x")
    Results(environment="household", seed=0, models=[model]).write(tmp_path / "run/a/results.json")
    index = make_index(tmp_path / "run")
    [shown] = evaluation(index, "a")["models"]
    assert [one["task"] for one in shown["lost"]] == ["t2"] and shown["report"]["lost"] == 1
    [row] = rates(index, "a")
    assert (row["mean"], row["episodes"], row["lost"]) == (1.0, 2, 1) and row["interval"]["low"] == wilson(2, 3)[0]


def test_evaluations_of_one_run_on_the_same_tasks_are_compared(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/01-base", [False] * 8)
    results(tmp_path / "run/02-sft", [True] * 8)
    results(tmp_path / "run/03-other", [True] * 8, seed=1)
    results(tmp_path / "run/deeper/04", [True] * 8)
    found = evaluation(make_index(tmp_path / "run"), "02-sft")
    assert [model["name"] for model in found["models"]] == ["01-base", "02-sft"]
    [comparison] = found["comparisons"]
    assert (comparison["first"], comparison["success"]["mean"], comparison["significant"]) == ("01-base", 1.0, True)
    assert found["models"][0]["file"] is None


def test_what_cannot_be_compared_is_said(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True])
    results(tmp_path / "run/b", [True])
    file = tmp_path / "run/b/results.json"
    file.write_text(file.read_text().replace('"digest": "d"', '"digest": "e"'))
    found = evaluation(make_index(tmp_path / "run"), "a")
    assert found["comparisons"] == [] and "different tasks with the same name" in found["why_not"]


def test_numbers_are_made_from_the_outcomes_and_not_taken_on_trust(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True, False])
    file = tmp_path / "run/a/results.json"
    file.write_text(file.read_text().replace('"reports": {}', '"reports": {"m": {"success": {"mean": 1.0}}}'))
    [model] = evaluation(make_index(tmp_path / "run"), "a")["models"]
    assert model["report"]["success"]["mean"] == 0.5


def test_results_that_change_are_read_again(tmp_path: Path, make_index: Make):
    results(tmp_path / "run/a", [True, False])
    index = make_index(tmp_path / "run")
    assert evaluation(index, "a")["models"][0]["report"]["episodes"] == 2
    results(tmp_path / "new", [True, False, True])
    (tmp_path / "new/results.json").rename(tmp_path / "run/a/results.json")
    assert evaluation(index, "a")["models"][0]["report"]["episodes"] == 3


def test_files_that_are_no_results_are_said(tmp_path: Path, make_index: Make):
    for name, text in (("a", "{}"), ("b", "nonsense"), ("c", "[" * 10_000)):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "results.json").write_text(text)
    index = make_index(tmp_path / "run")
    for name in ("a", "b", "c", "d", "../run/a"):
        with pytest.raises(MissingError):
            evaluation(index, name)


def test_the_curves_come_with_the_settings(folder: Path, make_index: Make):
    found = training(make_index(folder), "05-dpo", 0)
    assert [line["loss"] for line in found["lines"]] == LOSSES
    assert found["lines"][2]["margin/loop"] == pytest.approx(0.06)
    assert found["settings"]["learning_rate"] == 5e-05
    assert (found["state"], found["more"]) == ("done", False)


def test_a_page_asks_only_for_what_is_new(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    index = make_index(tmp_path / "run")
    first = training(index, ".", 0)
    assert [line["step"] for line in first["lines"]] == [1]
    with file.open("a") as stream:
        stream.write('ss": 1.5}\n')
    second = training(index, ".", first["next"])
    assert second["lines"] == [{"step": 2, "loss": 1.5}] and "settings" not in second
    assert training(index, ".", second["next"])["lines"] == []


def test_a_run_that_went_back_is_read_from_the_start(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n')
    index = make_index(tmp_path / "run")
    behind = training(index, ".", 0)["next"]
    file.write_text('{"step": 1}\n')
    again = training(index, ".", behind)
    assert (again["from"], again["lines"]) == (0, [{"step": 1}])


def test_lines_that_are_no_metrics_and_numbers_that_no_float_holds_are_left_out(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text(
        'nonsense\n[1]\n{"loss": 1}\n{"step": true}\n'
        '{"step": 1, "loss": NaN, "x": null, "y": "<b>", "z": 1e400, "ok": 2}\n'
        f'{{"step": 2, "loss": 2.0, "kl": 1{"0" * 400}}}\n{{"step": 1e99}}\n'
    )
    shown = [{"step": 1, "ok": 2}, {"step": 2, "loss": 2.0}]
    assert training(make_index(tmp_path / "run"), ".", 0)["lines"] == shown


def test_only_training_runs_of_the_folder_are_shown(folder: Path, make_index: Make):
    index = make_index(folder)
    for name in ("06-eval", "../played/05-dpo", str(folder / "05-dpo"), ""):
        with pytest.raises(MissingError):
            training(index, name, 0)


def evolved(folder: Path, *lines: dict[str, Any], report: Any = None, settings: str = "method: dpo\n") -> Path:
    """A run folder of `bough evolve`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lineage.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "metrics.jsonl").write_text('{"step": 0, "loss": 0.5, "fitness": 0.5}\n')
    (folder / "config.yaml").write_text(settings)
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_members_winner_and_pedigree_are_answered(tmp_path: Path, make_index: Make):
    evolved(tmp_path / "run/evolve", *FAMILY, report=REPORT)
    index = make_index(tmp_path / "run")
    found = evolution(index, "evolve")
    assert (found["state"], found["metric"], found["rate"], found["generations"]) == ("done", "accuracy", True, 3)
    assert [one["name"] for one in found["members"]] == [one["name"] for one in FAMILY]
    assert found["winner"] == {
        "name": "g2-1", "metric": "accuracy", "shrinkage": 0.25,
        "updates": 12, "empty_updates": 0, "tokens_computed": 3456,
        "selected": {"fitness": 0.875, "interval": [0.5, 1.0], "tasks": 8},
        "untouched": {"fitness": 0.625, "interval": [0.25, 0.75], "tasks": 8},
    }  # fmt: skip
    assert [one["name"] for one in found["pedigree"]] == ["g0-1", "g1-1", "g2-1"]
    [stage] = overview(index)["runs"][0]["stages"]
    assert stage["evolution"] and stage["training"] and stage["verb"] == "evolve"
    assert overview(index)["problems"] == []  # a lineage is not a data file that cannot be read


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ("method: dpo\n", "accuracy"),
        ("method: sft\n", "loss"),
        ("method: sft\nenvironment: {name: web}\n", "success"),
        ("method: grpo\nenvironment: web\nmetric: reward\n", "reward"),
    ],
)
def test_a_run_without_a_winner_yet_has_its_fittest_member(
    tmp_path: Path, make_index: Make, settings: str, metric: str
):
    evolved(tmp_path / "run", *FAMILY[:4], settings=settings)
    found = evolution(make_index(tmp_path / "run"), ".")
    assert (found["state"], found["winner"], found["leader"], found["metric"]) == ("running", None, "g1-1", metric)
    assert [one["name"] for one in found["pedigree"]] == ["g0-1", "g1-1"]


def test_the_report_of_a_shorter_run_names_no_winner_of_a_longer_one(tmp_path: Path, make_index: Make):
    evolved(tmp_path / "run", *FAMILY, line(3, "g3-0", 0.5), report=REPORT)
    assert evolution(make_index(tmp_path / "run"), ".")["winner"] is None


def test_a_lineage_that_grows_is_read_again(tmp_path: Path, make_index: Make):
    folder = evolved(tmp_path / "run", *FAMILY[:2])
    index = make_index(tmp_path / "run")
    assert evolution(index, ".")["generations"] == 1
    evolved(folder, *FAMILY)
    assert evolution(index, ".")["generations"] == 3


@pytest.mark.parametrize("report", [[], {"winner": 3}, {"winner": {"name": ["g2-1"]}}, {"winner": {"name": "g2-1"}}])
def test_a_report_of_any_shape_is_no_error(tmp_path: Path, make_index: Make, report: Any):
    evolved(tmp_path / "run", *FAMILY, report=report)
    winner = evolution(make_index(tmp_path / "run"), ".")["winner"]
    assert winner is None or winner["selected"] == {"fitness": None, "interval": None, "tasks": None}


def test_only_evolutions_of_the_folder_are_shown(tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch):
    evolved(tmp_path / "run/a", *FAMILY)
    evolved(tmp_path / "outside", *FAMILY)
    index = make_index(tmp_path / "run")
    for name in ("", "b", "../outside", str(tmp_path / "outside")):
        with pytest.raises(MissingError):
            evolution(index, name)
    monkeypatch.setattr(module, "MAX_LINEAGE", 10)
    with pytest.raises(MissingError, match="too large"):
        evolution(index, "a")
