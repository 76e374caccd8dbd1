import json
from pathlib import Path

import pytest

from bough.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


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
