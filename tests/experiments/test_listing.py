import json
import os
from pathlib import Path

import pytest

from bough.cli import main
from bough.evaluation.contest import with_numbers
from bough.evaluation.results import Results
from bough.experiments.listing import ListedRun, list_runs
from tests.evaluation.samples import result
from tests.report import folders


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """What single commands leave, beside folders that are not runs."""
    for verb in ("sft", "dpo", "grpo"):
        folders.stage(tmp_path / verb, verb)
    folders.collection(tmp_path / "expert")
    folders.evaluation(tmp_path / "measured", {"smollm2": "1100"})
    for name in ("model", "empty", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "empty/config.yaml").write_text("colour: red\n")
    return tmp_path


def test_the_folders_of_single_commands_are_runs(runs: Path):
    found = {run.name: run for run in list_runs(runs)}
    assert {name: run.made_by for name, run in found.items()} == {
        "dpo": "dpo", "expert": "collect", "grpo": "grpo", "measured": "eval", "sft": "sft"
    }  # fmt: skip
    assert found["sft"] == ListedRun("sft", "sft", "done", "loss 2.5 → 1.25 in 12 steps")
    assert found["expert"] == ListedRun("expert", "collect", "done", "success 92.5%, 40 episodes")
    assert found["measured"] == ListedRun("measured", "eval", "done")


def test_an_evaluation_of_two_models_shows_both_and_lost_episodes_are_counted(tmp_path: Path):
    models = [result("a", "1 0 1 1"), result("b", "0 0 0 x")]
    (tmp_path / "after").mkdir()
    with_numbers(Results(environment="household", seed=0, models=models)).write(tmp_path / "after/results.json")
    folders.collection(tmp_path / "broken")
    report = {"episodes": 0, "success_rate": None, "lost": {"a#0": "step raised", "b#0": "step raised"}}
    (tmp_path / "broken/report.json").write_text(json.dumps(report))
    assert list_runs(tmp_path) == [
        ListedRun("after", "eval", "done", "success 75.0% / 0.0%, 4 / 3 episodes, 1 lost"),
        ListedRun("broken", "collect", "done", "0 episodes, 2 lost"),
    ]


def test_an_unfinished_training_run_says_how_far_it_is(runs: Path):
    (runs / "sft/final").rename(runs / "away")
    assert next(run for run in list_runs(runs) if run.name == "sft").progress == "unfinished, step 12"


def test_runs_list_and_show_print_them_as_text_and_as_json(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["runs", "list", str(runs)]) == 0
    assert "dpo       dpo      done      loss 2.5 → 1.25 in 12 steps" in capsys.readouterr().out
    assert main(["runs", "list", str(runs), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in listed["runs"]] == ["dpo", "expert", "grpo", "measured", "sft"]
    assert main(["runs", "show", str(runs / "sft")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("sft: bough sft, done, loss 2.5") and "    train_file: data.jsonl\n" in shown
    assert main(["runs", "show", str(runs / "sft"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["train_file"] == "data.jsonl"


def test_what_is_not_a_regular_file_ends_no_listing(runs: Path):
    metrics = runs / "sft/metrics.jsonl"
    metrics.unlink()
    os.mkfifo(metrics)
    found = {run.name: run for run in list_runs(runs)}
    assert (found["sft"].progress, found["dpo"].progress) == ("cannot be read", "done")
    assert "not a regular file" in found["sft"].result
