import asyncio
import json
import shutil
from pathlib import Path

import pytest

import bough
from bough.cli import main
from tests.commands.letters import WriteLetter

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


FEW = {"tasks": 6, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def evaluation() -> bough.Evaluation:
    found = bough.evaluate(["tiny", "expert"], WriteLetter, **FEW)
    assert isinstance(found, bough.Evaluation)
    return found


def test_it_prints_the_table_of_the_command_line(evaluation: bough.Evaluation):
    text = str(evaluation)
    assert "success (95% interval)" in text and "expert against tiny:" in text
    assert evaluation.success["expert"] == 1.0 and evaluation.success["tiny"] in (
        pytest.approx(n / 6) for n in range(7)
    )
    assert evaluation.path is None


def test_a_loaded_model_goes_by_its_own_name(tmp_path: Path):
    model = bough.load("tiny", lora=bough.Lora(r=4))

    async def notebook() -> object:
        return bough.evaluate(["tiny", model], WriteLetter, output=tmp_path, **FEW)

    found = asyncio.run(notebook())
    assert isinstance(found, bough.Evaluation)
    # A new adapter changes nothing: the two are the same model under names that can be told apart.
    assert list(found.success) == ["tiny (1)", "tiny (2)"] and len(set(found.success.values())) == 1
    assert found.path == tmp_path and "tiny (2)" in (tmp_path / "results.json").read_text()


def test_held_out_records_in_memory(tmp_path: Path):
    expert = bough.collect("expert", WriteLetter, tasks=3)
    found = bough.evaluate("tiny", eval_file=expert, output=tmp_path / "measures.json")
    assert isinstance(found, bough.HeldOutMeasures)
    assert found["rows"] == 3 and found["perplexity"] > 1 and "perplexity" in repr(found)
    written = json.loads((tmp_path / "measures.json").read_text())
    assert written == {"model": "tiny", "eval_file": "records", **found}


def test_one_of_the_two_uses_must_be_chosen():
    with pytest.raises(bough.InputError, match=r"bough\.evaluate\(\) has 1 problem"):
        bough.evaluate("tiny")


def test_evaluations_are_compared_in_memory_and_from_files(evaluation: bough.Evaluation, tmp_path: Path):
    other = bough.evaluate("expert", WriteLetter, output=tmp_path / "expert", **FEW)
    assert isinstance(other, bough.Evaluation)
    found = bough.compare(evaluation, tmp_path / "expert", gate=True, output=tmp_path / "compared.json")
    assert list(found.reports) == ["tiny", "expert (evaluation 1)", f"expert ({tmp_path / 'expert'})"]
    assert found.decision is not None and found.decision.reason in repr(found)
    assert (tmp_path / "compared.json").is_file()
    seeds = bough.evaluate("expert", WriteLetter, seed=1, **FEW)
    assert isinstance(seeds, bough.Evaluation)
    with pytest.raises(bough.InputError, match="cannot be compared"):
        bough.compare(evaluation, seeds)
