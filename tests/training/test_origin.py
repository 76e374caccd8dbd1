import json
import shutil
from pathlib import Path

import pytest

from bough.config.run_folder import RunDir
from bough.errors import InputError
from bough.methods.dpo import DPOConfig
from bough.training.run import Origin, start_of


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "sft" / "final"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny"}')
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def config(tmp_path: Path, adapter: Path) -> DPOConfig:
    return DPOConfig(model="tiny", adapter=adapter, train_file=Path("a.jsonl"), output_dir=tmp_path / "dpo")


def test_every_difference_is_named(tmp_path: Path, adapter: Path):
    settings = config(tmp_path, adapter)
    before = Origin.of(settings, adapter, "data", "held-out")
    (adapter / "adapter_model.safetensors").write_bytes(b"other weights")
    after = Origin.of(settings, adapter, "other data", "other held-out")
    adapted, examples = after.differences(before, settings, adapter)
    assert f"the start adapter {adapter} is not the one" in adapted and "the examples of a.jsonl" in examples
    (model,) = Origin("x").differences(Origin("y"), settings, None)
    assert "the model tiny is not the one the run began with" in model


def test_what_a_run_started_from_is_found_from_its_weights(tmp_path: Path, adapter: Path):
    run = RunDir(tmp_path / "dpo")
    settings = config(tmp_path, adapter)
    run.create(settings)
    Origin.of(settings, adapter, "data", None).write(run)
    for weights in (run.final, run.best, run.checkpoints / "step-00000001" / "weights"):
        assert start_of(weights) == adapter
    with pytest.raises(InputError, match="is not in a run folder"):
        start_of(tmp_path / "elsewhere")
    (adapter / "adapter_model.safetensors").write_bytes(b"trained again")
    with pytest.raises(InputError, match="is not there or has changed since"):
        start_of(run.final)
    shutil.rmtree(adapter)
    with pytest.raises(InputError, match="is not there or has changed since"):
        start_of(run.final)
    run.origin.write_text(json.dumps({"model": "x"}))
    assert start_of(run.final) is None
