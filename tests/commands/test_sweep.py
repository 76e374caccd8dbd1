import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli import main
from bough.commands.objects import environment_name
from tests.blocks import ROOT, blocks, lines
from tests.commands.letters import LETTERS, WriteLetter
from tests.experiments.counting import ENVIRONMENT, RECIPE
from tests.standing_in import stand_in


def arguments(folder: Path, *more: str) -> list[str]:
    (folder / "counting.yaml").write_text(RECIPE)
    flags = ["--seeds", "1", "-o", str(folder / "out"), "--set", ENVIRONMENT]
    return ["sweep", str(folder / "counting.yaml"), "--vary", "after.max_turns=2,4", *flags, *more]


def test_stdout_has_the_table_alone(tmp_path: Path, capsys: Any):
    assert main(arguments(tmp_path)) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:3] == ["after.max_turns", "evaluation", "success"]
    assert [line[:3] for line in lines[1:4]] == [
        ["all", "01-before", "0.0%"], ["2", "04-after", "33.3%"], ["4", "04-after", "100.0%"]
    ]  # fmt: skip
    assert f"figure.svg are in {tmp_path / 'out'}." in out
    assert "run 2 of 2: after.max_turns=4, seed 0" in err and "2 of 2 runs done" in err
    assert main(arguments(tmp_path, "--json")) == 0
    assert [row["evaluation"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["01-before"] + [
        "04-after"
    ] * 2


def test_a_failed_run_makes_the_exit_code_1(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    stand_in(monkeypatch, "eval", lambda config: 1)
    assert main(arguments(tmp_path)) == 1
    err = capsys.readouterr().err
    assert "2 of 2 runs failed; the same command runs only what is missing." in err
    assert "after.max_turns-2-seed-0 failed: 01-before failed" in err


def test_a_dry_run_shows_what_is_shared_and_writes_nothing(tmp_path: Path, capsys: Any):
    assert main(arguments(tmp_path, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert f"2 runs in {tmp_path / 'out'}: 5 of 8 stages to compute" in out
    assert "    03-demos  shared with after.max_turns=2, seed 0" in out
    assert main(arguments(tmp_path, "--dry-run", "--json")) == 0
    second = json.loads(capsys.readouterr().out)["runs"][1]
    assert second["stages"][3] == {"stage": "04-after", "shared_with": None}
    assert second["stages"][0]["shared_with"] == "after.max_turns-2-seed-0"
    assert not (tmp_path / "out").exists()


def test_the_ablations_of_environment_feedback_dpo_are_sweeps(capsys: Any):
    """β, the number of demonstrations, dense feedback and the kinds of pairs, as the guide writes them."""
    page = (ROOT / "docs/guides/sweep.md").read_text().partition("## Example")[2]
    ((_, block),) = blocks(page, "sh")
    computed = {}
    for line in lines(block):
        words = shlex.split(line)
        assert main(words[1:]) == 0, line
        computed[words[4].partition("=")[0]] = capsys.readouterr().out.partition(": ")[2].partition(" stages")[0]
    assert computed == {
        "dpo.beta": "51 of 135",
        "demonstrations.tasks": "123 of 135",
        "pairs.progress_margin": "36 of 54",
        "pairs.kinds": "45 of 81",
    }


def test_trained_models_share_their_demonstrations(tmp_path: Path):
    (tmp_path / "letters.yaml").write_text(LETTERS)
    environment_name(WriteLetter)
    vary = {"sft.learning_rate": [1e-4, 1e-3]}
    found = bough.sweep(tmp_path / "letters.yaml", vary, seeds=1, output=tmp_path / "sweep")
    assert found.failed == {}
    assert [row.values for row in found.rows] == [{"sft.learning_rate": 1e-4}, {"sft.learning_rate": 1e-3}]
    assert [row.success.episodes for row in found.rows] == [3, 3]
    runs = [found.folder / "runs" / f"sft.learning_rate-{rate}-seed-0" for rate in ("0.0001", "0.001")]
    first, second = (run / "02-demos/demonstrations.jsonl" for run in runs)
    assert first.samefile(second)
    one, other = ((run / "03-sft/final/adapter_model.safetensors").read_bytes() for run in runs)
    assert one != other
    assert "sft.learning_rate=0.001: 04-eval" in repr(found)
    with pytest.raises(bough.InputError, match=r"bough\.sweep\(\) has no setting dry_run"):
        bough.sweep(tmp_path / "letters.yaml", vary, dry_run=True)
