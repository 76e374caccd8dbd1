"""Every report as JSON: one object on stdout, and nothing else there."""

import json
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.config.run_folder import MetricsFile

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
    command = ["run", str(tmp_path / "mine.yaml"), "-o", str(run), "--set", environment, "--report-to", "none"]
    planned = report(capsys, *command, "--dry-run")["stages"]
    assert [stage["command"] for stage in planned] == ["collect", "eval"] and planned[0]["settings"]["tasks"] == 2
    played = report(capsys, *command)
    shown = report(capsys, "runs", "show", run)
    assert shown == played
    assert [stage["record"]["finished"] for stage in shown["stages"]] == [True, True]
    assert shown["evaluations"][0]["success"] == 1 and shown["recipe"]["name"] == "mine"
    assert report(capsys, "runs", "list", tmp_path / "runs")["runs"] == [
        {"name": "mine", "made_by": "recipe mine", "progress": "2 of 2 stages", "result": "last stage: eval"}
    ]


SAMPLES = Path(__file__).parents[1] / "samples"
SHORT = ["--model", "tiny", "--max-steps", "2", "--batch-size", "2"]


def test_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sft, dpo, grpo = (tmp_path / name for name in ("sft", "dpo", "grpo"))
    found = report(
        capsys, "sft", *SHORT, "--train-file", SAMPLES / "trl_messages.jsonl",
        "--eval-file", SAMPLES / "sharegpt.jsonl", "--eval-steps", "1", "--output-dir", sft,
    )  # fmt: skip
    assert found["weights"] == str(sft / "final") and found["steps"] == 2
    held_out = [line["eval_loss"] for line in MetricsFile.read(sft / "metrics.jsonl") if "eval_loss" in line]
    assert found["metrics"]["eval_loss"] == {"first": held_out[0], "last": held_out[1]}
    assert found["best_eval_loss"] == min(held_out)
    assert found["ledgers"][0]["item"] == "rows" and found["tokens_without_sharing"] >= found["tokens_computed"]
    assert "as_json" not in (sft / "config.yaml").read_text()
    pairs = SAMPLES / "roundwise_dpo.jsonl"
    assert report(capsys, "dpo", *SHORT, "--train-file", pairs, "--output-dir", dpo)["metrics"]["accuracy"]
    groups = SAMPLES / "knowlyr_grpo.jsonl"
    assert report(capsys, "grpo", *SHORT, "--train-file", groups, "--output-dir", grpo)["steps"] == 2
    merged = report(capsys, "merge", sft / "final", "-o", tmp_path / "merged")
    assert (merged["adapter"], merged["output"]) == (str(sft / "final"), str(tmp_path / "merged"))


def test_environments(capsys: pytest.CaptureFixture[str]):
    listed = {one["name"]: one for one in report(capsys, "env", "list")["environments"]}
    assert {"household", "interpreter", "web"} <= set(listed)
    shown = report(capsys, "env", "list", "household")
    assert shown == listed["household"]
    assert {"name": "admissible", "required": False}.items() <= next(
        option for option in shown["options"] if option["name"] == "admissible"
    ).items()
    checked = report(capsys, "env", "check", COUNTING[1], "--tasks", 2)
    assert checked == {"environment": "counting", "tasks": 2, "ok": True, "found": {}}
    assert main(["env", "check", "tests.environments.worlds:Fragile", "--tasks", "1", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert report(capsys, "env", "setup", COUNTING[1])["needs_setup"] is False


def test_converted_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "pairs.jsonl"
    found = report(capsys, "data", "convert", HELD_OUT, "--to", "bough", "-o", target)
    assert found == {"file": str(HELD_OUT), "output": str(target), "format": "bough", "written": 5, "skipped": {}}
