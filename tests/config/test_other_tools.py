from pathlib import Path

import pytest

from bough.commands.data import StatsConfig
from bough.config.base import translate
from bough.errors import InputError
from bough.experiments.recipe import load_recipe
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig


def test_a_file_of_knowlyr_trainer_is_read_as_it_is_written(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "model_name_or_path: tiny\ntrain_file: a.jsonl\nagent_format: true\n"
        "mask_observations: true\nchunk_long_trajectories: true\n"
    )
    assert SFTConfig.load(file) == SFTConfig(model="tiny", train_file=Path("a.jsonl"))
    file.write_text("train_file: a.jsonl\nstep_level_advantage: true\nlr: 3.0e-6\n")
    assert GRPOConfig.load(file) == GRPOConfig(train_file=Path("a.jsonl"), advantage="step", learning_rate=3e-6)


def test_what_cannot_be_turned_off_is_said_with_its_line(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("train_file: a\nmask_observations: false\nmodel: tiny\nmodel_name_or_path: smollm2\n")
    with pytest.raises(InputError) as error:
        SFTConfig.load(file)
    assert f"{file}:2: mask_observations is False; choose one of True: only replies are trained" in error.value.problems
    assert any("model_name_or_path means model, which is given too" in problem for problem in error.value.problems)


def test_a_flag_overrides_the_file_under_either_name(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("model_name_or_path: smollm2\ntrain_file: a.jsonl\nlr: 1.0e-3\n")
    settings = DPOConfig.load(file, {"model": "tiny", "learning_rate": "2e-5"})
    assert (settings.model, settings.optimizer.learning_rate) == ("tiny", 2e-5)


def test_other_commands_do_not_know_the_keys_of_training(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text("file: a.jsonl\nmask_observations: true\n")
    with pytest.raises(InputError, match="mask_observations is not a setting"):
        StatsConfig.load(file)
    assert translate({"lr": 1, "mask_observations": False}, ["file"]) == ({"lr": 1, "mask_observations": False}, {})


def test_the_training_stages_of_a_recipe_are_translated_too(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("stages:\n  - grpo: {train_file: a, step_level_advantage: true, agent_format: true}\n")
    assert load_recipe(file, {}).stages == [{"grpo": {"train_file": "a", "advantage": "step"}}]
    file.write_text("stages:\n  - sft: {name: first, agent_format: false}\n")
    with pytest.raises(InputError, match="first: agent_format is False; choose one of True"):
        load_recipe(file, {})
