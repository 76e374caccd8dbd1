from pathlib import Path

import pytest
import yaml

from bough.config.base import Config
from bough.config.groups import CollectConfig
from bough.experiments.recipe import read_settings
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig


@pytest.mark.parametrize(
    ("verb", "config"),
    [
        ("sft", SFTConfig(train_file="a.jsonl", lora_r=4)),
        ("dpo", DPOConfig(train_file="a.jsonl", optimizer="adamw_8bit")),
        ("grpo", GRPOConfig(environment="web", max_steps=1, curriculum=False)),
        ("collect", CollectConfig(environment="web", output="out", model="tiny")),
    ],
)
def test_the_command_and_its_flat_settings_are_read_from_either_form(verb: str, config: Config, tmp_path: Path):
    (tmp_path / "nested.yaml").write_text(config.to_yaml())
    (tmp_path / "flat.yaml").write_text(yaml.safe_dump({"command": verb, **config.flat_dump()}))
    assert read_settings(tmp_path / "nested.yaml") == (verb, config.flat_dump())
    assert read_settings(tmp_path / "flat.yaml") == (verb, config.flat_dump())
    # Earlier versions named no command, and had settings that are gone.
    old = {**config.flat_dump(), "fp16": False, "gradient_accumulation_steps": 1}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(old))
    assert read_settings(tmp_path / "old.yaml")[0] == verb


def test_other_files_have_no_command_and_are_shown_as_they_are(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("colour: red\nlora: {r: 8}\n")
    assert read_settings(tmp_path / "config.yaml") == (None, {"colour": "red", "lora": {"r": 8}})
