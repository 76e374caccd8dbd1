import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.report.viewer import training as module
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import overview
from bough.report.viewer.training import evolution, training
from tests.experiments.family import FAMILY, REPORT, line
from tests.report.viewer.run_folder import LOSSES

Make = Callable[[Path], Index]


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


def test_lines_that_are_no_metrics_are_left_out(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text(
        'nonsense\n[1]\n{"loss": 1}\n{"step": true}\n'
        '{"step": 1, "loss": NaN, "x": null, "y": "<b>", "z": 1e400, "ok": 2}\n'
    )
    assert training(make_index(tmp_path / "run"), ".", 0)["lines"] == [{"step": 1, "ok": 2}]


def test_only_training_runs_of_the_folder_are_shown(folder: Path, make_index: Make):
    index = make_index(folder)
    for name in ("06-eval", "../played/05-dpo", str(folder / "05-dpo"), ""):
        with pytest.raises(MissingError):
            training(index, name, 0)


def test_a_number_that_no_float_holds_is_left_out(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "kl": 1' + "0" * 400 + '}\n{"step": 1e99}\n')
    assert training(make_index(tmp_path / "run"), ".", 0)["lines"] == [{"step": 1, "loss": 2.0}]


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
