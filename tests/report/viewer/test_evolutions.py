import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.report.viewer import training
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError
from bough.report.viewer.runs import overview
from bough.report.viewer.training import evolution
from tests.experiments.family import FAMILY, REPORT, line

Make = Callable[[Path], Index]


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
        ("method: grpo\nenvironment: web\nfitness: {metric: reward}\n", "reward"),
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
    monkeypatch.setattr(training, "MAX_LINEAGE", 10)
    with pytest.raises(MissingError, match="too large"):
        evolution(index, "a")
