import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.errors import InputError
from bough.methods.sft import SFTConfig
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora, load_actor, lora, start_adapter
from bough.policy.load import load_model, save_policy
from bough.policy.policy import Policy

OWN = Lora(r=4, alpha=12, dropout=0.1, targets=("q_proj", "v_proj"))


def adapter(folder: Path, shape: Lora = OWN) -> Path:
    save_policy(Policy.load("tiny", lora=shape), load_tokenizer("tiny"), folder)
    return folder


def shape_with(start: Path, **settings: Any) -> Lora:
    return lora(start_adapter(SFTConfig(model="tiny", train_file=Path("a"), adapter=start, **settings))[1].lora)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, OWN),
        ({"lora_dropout": 0.3}, Lora(4, 12, 0.3, OWN.targets)),
        ({"lora_r": 4, "lora_target_modules": ["v_proj", "q_proj"]}, OWN),
        ({"merge_lora": True, "lora_r": 16}, Lora(16, 12, 0.1, OWN.targets)),
        ({"merge_lora": True, "lora_r": 2, "lora_target_modules": ["k_proj"]},
         Lora(4, 12, 0.1, ("k_proj", "q_proj", "v_proj"))),
    ],
)  # fmt: skip
def test_what_was_not_asked_for_is_as_the_start_adapter_has_it(
    tmp_path: Path, settings: dict[str, Any], expected: Lora
):
    assert shape_with(adapter(tmp_path), **settings) == expected


def test_only_what_was_asked_for_can_differ(tmp_path: Path):
    with pytest.raises(InputError) as error:
        shape_with(adapter(tmp_path), lora_r=8, lora_target_modules=["all-linear"])
    assert error.value.problems == [
        "lora_r is 8 here and 4 there",
        "lora_target_modules is all-linear here and ('q_proj', 'v_proj') there",
    ]


def test_layers_are_compared_and_not_their_names(tmp_path: Path):
    start = adapter(tmp_path, Lora(r=4))
    shape = shape_with(start, lora_target_modules=["all-linear"])
    assert len(shape.targets) == 14 and "model.layers.0.mlp.up_proj" in shape.targets
    kinds = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert shape_with(start, lora_target_modules=kinds) == shape
    with pytest.raises(InputError, match="lora_target_modules does not fit the model"):
        shape_with(start, lora_target_modules=["w_proj"])


def test_a_pattern_for_layers_is_kept(tmp_path: Path):
    start = adapter(tmp_path, Lora(r=4, targets=r".*\.[qv]_proj"))
    assert shape_with(start).targets == r".*\.[qv]_proj"
    assert shape_with(start, merge_lora=True, lora_r=8).targets == r".*\.[qv]_proj"


def test_a_dropout_is_given_to_an_adapter_that_is_loaded(tmp_path: Path):
    model = load_model("tiny", dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    policy = Policy(load_actor(model, adapter(tmp_path / "a"), dropout=0.3))
    drops = {module.p for name, module in policy.named_modules() if name.endswith("lora_dropout.actor")}
    assert drops == {0.3}
    assert all(parameter.requires_grad for name, parameter in policy.named_parameters() if "lora_" in name)
    save_policy(policy, load_tokenizer("tiny"), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["lora_dropout"] == 0.3


def test_all_weights_cannot_start_from_an_adapter(tmp_path: Path):
    with pytest.raises(InputError, match="--no-use-lora cannot start from the adapter"):
        shape_with(adapter(tmp_path), use_lora=False)
