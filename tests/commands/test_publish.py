"""What is done with trained weights."""

from pathlib import Path

import pytest

import bough
from tests.blocks import ROOT

PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_a_trained_adapter_is_merged_and_gets_a_card(tmp_path: Path):
    trained = bough.dpo("tiny", PAIRS, output_dir=tmp_path / "run", max_steps=1, max_length=256)
    model = bough.merge(trained, tmp_path / "model")
    assert model == tmp_path / "model" and (model / "model.safetensors").is_file()
    with pytest.raises(bough.InputError, match="exists"):
        bough.merge(trained, tmp_path / "model")
    card = bough.card(trained, license="mit")
    assert card.path == trained.path / "README.md" and card.path.read_text() == card.text and "mit" in card.text
    with pytest.raises(bough.InputError, match="exists"):
        bough.card(trained)
