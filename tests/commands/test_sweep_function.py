"""A sweep from Python: a model is trained with two learning rates on the same demonstrations."""

from pathlib import Path

import pytest

import bough
from bough.commands.objects import environment_name
from tests.commands.letters import WriteLetter

RECIPE = """\
name: letters
model: tiny
defaults: {environment: WriteLetter, max_new_tokens: 4, tasks: 3}
stages:
  - collect: {model: expert}
  - demos: {}
  - sft: {max_steps: 1, learning_rate: 1.0e-3}
  - eval: {}
"""


def test_trained_models_share_their_demonstrations(tmp_path: Path):
    (tmp_path / "letters.yaml").write_text(RECIPE)
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
