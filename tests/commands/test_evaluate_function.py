"""Models in an environment handed in as a class, on held-out records, and evaluations side by side."""

import asyncio
import json
from pathlib import Path

import pytest

import bough
from tests.commands.letters import WriteLetter

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
