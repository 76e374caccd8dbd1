from pathlib import Path
from typing import Any

import pytest

from bough.config.training import TrainingConfig
from bough.errors import InputError
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"environment": "household"}, "max_steps is required"),
        ({"environment": "e", "max_steps": 1, "task_file": "t", "eval_every": 1}, "needs eval_task_file"),
        ({"environment": "e", "max_steps": 1, "task_file": "t", "eval_task_file": "t"}, "eval_task_file is task_file"),
        ({"train_file": "g.jsonl", "environment": "household"}, "give one of them"),
        ({}, "give one of them"),
    ],
)
def test_settings_of_grpo_that_do_not_go_together(settings: dict, said: str):
    with pytest.raises(InputError) as error:
        GRPOConfig(output_dir="out", **settings)
    assert said in "".join(error.value.problems)


@pytest.mark.parametrize("stage", [SFTConfig, DPOConfig, GRPOConfig])
@pytest.mark.parametrize("settings", [{"save_best_model": True}, {"early_stopping_patience": 2}, {"eval_steps": 5}])
def test_what_measures_on_held_out_data_needs_some(stage: type[TrainingConfig], settings: dict[str, Any]):
    with pytest.raises(InputError) as error:
        stage(train_file="a.jsonl", **settings)
    assert error.value.problems == [f"{next(iter(settings))} needs eval_file, the data to measure on"]
    stage(train_file="a.jsonl", eval_file="b.jsonl", **settings)


def test_what_is_for_data_on_file_does_not_go_with_an_environment():
    played = {"environment": "household", "max_steps": 1}
    names = ["eval_file", "eval_steps", "early_stopping_patience", "save_best_model", "curriculum"]
    settings = dict(zip(names, ["a.jsonl", 1, 1, True, True], strict=True))
    with pytest.raises(InputError) as error:
        GRPOConfig(**played, **settings)
    assert error.value.problems == [f"{', '.join(settings)} does not go with environment: it is for data on file"]


def test_settings_on_file_with_every_default_are_read_back(tmp_path: Path):
    config = GRPOConfig(environment="household", max_steps=1)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert GRPOConfig.load(tmp_path / "config.yaml") == config


def test_a_learning_rate_chosen_by_default_is_in_the_settings_on_file(tmp_path: Path):
    config = SFTConfig(train_file="a", use_lora=False)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert "learning_rate: 2.0e-05" in config.to_yaml() and SFTConfig.load(tmp_path / "config.yaml") == config
