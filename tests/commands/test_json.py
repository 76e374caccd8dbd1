"""Every report as JSON: one object on stdout, and nothing else there."""

import json
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main

COUNTING = ["--environment", "tests.environments.worlds:Counting"]
HELD_OUT = Path(__file__).parents[2] / "examples" / "household-pairs-held-out.jsonl"


def report(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_episodes_and_what_is_made_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    played = tmp_path / "played"
    found = report(capsys, "collect", "--model", "random", *COUNTING, "--tasks", 4, "--attempts", 3, "-o", played)
    assert found["episodes"] == 12 and found["output"] == str(played)
    # Nothing of the flag is stored: the same collection is complete, with or without it.
    assert "json" not in (played / "config.yaml").read_text()
    assert report(capsys, "collect", "--model", "random", *COUNTING, "--tasks", 4, "--attempts", 3, "-o", played)
    experts = tmp_path / "experts"
    assert report(capsys, "collect", "--model", "expert", *COUNTING, "--tasks", 4, "-o", experts)["success_rate"] == 1
    demos = report(capsys, "demos", experts, "-o", tmp_path / "demos.jsonl")
    assert demos["written"] == 4 and demos["ledgers"][0] == {
        "item": "trajectories", "in": 4, "kept": 4, "dropped": {}
    }  # fmt: skip
    groups = report(capsys, "groups", played, "-o", tmp_path / "groups.jsonl", "--flat")
    assert groups["written"] == 4
    pairs = report(capsys, "pairs", played, "--also", experts, "-o", tmp_path / "pairs.jsonl")
    assert pairs["written"] == sum(pairs["reasons"].values()) > 0


def test_evaluations_and_comparisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    models = ["--model", "random", "--model", "expert"]
    found = report(capsys, "eval", *models, *COUNTING, "--tasks", 4, "-o", tmp_path / "eval")
    assert found["reports"]["expert"]["success"]["mean"] == 1 and len(found["comparisons"]) == 1
    compared = report(capsys, "compare", tmp_path / "eval")
    assert compared["comparisons"][0]["second"] == "expert" and compared["gate"] is None and compared["notes"] == []
    measured = report(capsys, "eval", "--model", "tiny", "--eval-file", HELD_OUT)
    assert measured["pairs"] == 5 and measured["model"] == "tiny"


def test_a_recipes_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.yaml").write_text(
        "stages:\n  - collect: {model: expert, tasks: 2}\n  - eval: {model: [expert], tasks: 2}\n"
    )
    environment = f"defaults.environment={COUNTING[1]}"
    run = tmp_path / "runs/mine"
    assert main(["run", str(tmp_path / "mine.yaml"), "-o", str(run), "--set", environment, "--report-to", "none"]) == 0
    capsys.readouterr()
    shown = report(capsys, "runs", "show", run)
    assert [stage["record"]["finished"] for stage in shown["stages"]] == [True, True]
    assert shown["evaluations"][0]["success"] == 1 and shown["recipe"]["name"] == "mine"
    assert report(capsys, "runs", "list", tmp_path / "runs")["runs"] == [
        {"name": "mine", "made_by": "recipe mine", "progress": "2 of 2 stages", "result": "last stage: eval"}
    ]
