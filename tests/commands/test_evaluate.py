import json
import shutil
from pathlib import Path

import pytest

from bough.cli import main

EXAMPLES, SAMPLES = Path(__file__).parents[2] / "examples", Path(__file__).parents[1] / "samples"


def test_eval_prints_and_writes_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["eval", "--model", "tiny", "--eval-file", str(EXAMPLES / "household-pairs-held-out.jsonl")]
    assert main([*command, "-o", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown and "preference accuracy" in shown
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["pairs"] == 5 and found["rows"] == 5
    assert found["perplexity"] > 1


def test_a_file_without_good_rows_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert main(["eval", "--model", "tiny", "--eval-file", str(tmp_path / "a.jsonl")]) == 2
    assert "no row can be read" in capsys.readouterr().err


def test_pairs_are_compared_over_the_reference_that_an_adapter_was_trained_against(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    pairs = tmp_path / "pairs.jsonl"
    every = (EXAMPLES / "household-pairs-held-out.jsonl").read_text().splitlines(keepends=True)
    pairs.write_text("".join(sorted(every, key=len)[:2]))

    def measured(model: Path) -> dict[str, float]:
        caplog.clear()
        assert main(["eval", "--model", str(model), "--eval-file", str(pairs), "-o", str(tmp_path / "out.json")]) == 0
        found: dict[str, float] = json.loads((tmp_path / "out.json").read_text())
        return found

    sft, dpo = tmp_path / "sft", tmp_path / "dpo"
    train = ["--train-file", str(SAMPLES / "trl_messages.jsonl"), "--max-steps", "4", "--learning-rate", "2e-2"]
    assert main(["sft", "--model", "tiny", *train, "--output-dir", str(sft)]) == 0
    # Steps too small to change a weight: on the reference, which is the SFT adapter, nothing is gained.
    train = ["--train-file", str(pairs), "--max-steps", "1", "--learning-rate", "1e-30"]
    assert main(["dpo", "--model", str(sft / "final"), *train, "--output-dir", str(dpo)]) == 0
    assert measured(sft / "final")["preference_accuracy_over_reference"] > 0  # over the bare model
    assert measured(dpo / "final")["preference_accuracy_over_reference"] == 0
    assert measured(dpo / "checkpoints" / "step-00000001" / "weights")["preference_accuracy_over_reference"] == 0

    shutil.copytree(dpo / "final", tmp_path / "elsewhere")
    assert "preference_accuracy_over_reference" not in measured(tmp_path / "elsewhere")
    assert "elsewhere is not in a run folder, so it is not known what it was trained from" in caplog.text
    shutil.rmtree(sft)
    assert "preference_accuracy_over_reference" not in measured(dpo / "final")
    assert f"../sft/final, the adapter that {dpo} started from, is not there or has changed since" in caplog.text


COUNTING = ["--environment", "tests.environments.worlds:Counting"]


def test_models_play_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["eval", "--model", "random", "--model", "expert", *COUNTING, "--episodes", "30", "-o", str(tmp_path / "e")]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "expert against random: +" in shown.out and "McNemar exact p < 0.0001; significant." in shown.out
    assert "100.0% (88.6–100.0)" in shown.out and f"results in {tmp_path / 'e' / 'results.json'}" in shown.out
    assert "random: 30 episodes to play, 0 already recorded" in shown.err
    found = json.loads((tmp_path / "e/results.json").read_text())
    assert found["bough"] == "evaluation/1" and [len(model["outcomes"]) for model in found["models"]] == [30, 30]
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == shown.out and "random: 0 episodes to play, 30 already recorded" in again.err


def test_lost_episodes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from tests.environments.worlds import Breaking

    Breaking.broken = {"unseen-0-1": 99}
    words = ["eval", "--model", "expert", "--environment", "tests.environments.worlds:Breaking", "--tasks", "3"]
    assert main([*words, "--retries", "0", "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "lost expert, unseen-0-1#0: the browser died" in shown.err and "2, 1 lost" in shown.out
    Breaking.broken = {}


def test_eval_needs_to_know_what_for(capsys: pytest.CaptureFixture[str]):
    assert main(["eval", "--model", "tiny"]) == 2
    assert "give either --environment or --agent (to play) or --eval-file" in capsys.readouterr().err
