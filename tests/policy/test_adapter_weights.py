import json
import re

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from bough.errors import InputError
from bough.policy.adapters import ACTOR, AdapterWeights
from bough.policy.policy import Policy
from tests.policy.families import make

X = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"]


def adapted(name: str = ACTOR, family: str = "llama", **options):
    config = LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "up_proj"]} | options)
    model = get_peft_model(make(family), config, adapter_name=name)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "lora_B" in path:
                weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def assert_computes_what_peft_does(weights: AdapterWeights, model) -> None:
    for name in NAMES:
        layer = model.get_base_model().get_submodule(name)
        with torch.no_grad():
            expected = layer(X) - layer.base_layer(X)
        down, up = weights.layers[name]
        torch.testing.assert_close(X @ down.T @ up.T, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"use_rslora": True}, {"alpha_pattern": {"up_proj": 3}, "rank_pattern": {"layers.1.self_attn.q_proj": 7}}],
    ids=str,
)
def test_it_computes_what_peft_computes_wherever_it_comes_from(tmp_path, options):
    model = adapted(**options)
    model.save_pretrained(tmp_path)
    folder = tmp_path / ACTOR
    config = json.loads((folder / "adapter_config.json").read_text())
    policy = Policy(model, attention="sdpa", probe=False)
    ways = [
        AdapterWeights.of(model),
        AdapterWeights.read(folder),
        AdapterWeights.of_tensors(policy.weights(), config),
        AdapterWeights.of_tensors(policy.weights(), model.peft_config[ACTOR].to_dict()),
    ]
    for weights in ways:
        assert len(weights.layers) == 4
        assert_computes_what_peft_does(weights, model)


def test_it_is_a_copy_of_one_of_several_adapters():
    model = adapted("red")
    model.add_adapter("blue", LoraConfig(r=2, target_modules=["v_proj"]))
    both = AdapterWeights.of_each(model, ["red", "blue"])
    red, blue = both["red"], AdapterWeights.of(model, "blue")
    assert both["blue"].layers.keys() == blue.layers.keys()
    assert all(torch.equal(pair.up_OR, blue.layers[name].up_OR) for name, pair in both["blue"].layers.items())
    assert {name.rpartition(".")[2] for name in red.layers} == {"q_proj", "up_proj"}
    assert {name.rpartition(".")[2] for name in blue.layers} == {"v_proj"}
    before = {name: pair.down_RI.clone() for name, pair in red.layers.items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert all(torch.equal(pair.down_RI, before[name]) for name, pair in red.layers.items())
    with pytest.raises(InputError, match="no adapter named 'green'"):
        AdapterWeights.of(model, "green")


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"use_dora": True}, "model.layers.0.self_attn.q_proj"),
        ({"lora_bias": True}, "model.layers.0.self_attn.q_proj"),
        ({"target_modules": ["embed_tokens"]}, "model.embed_tokens"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
    ],
    ids=str,
)
def test_other_kinds_of_adapters_are_refused(tmp_path, options, where):
    model = adapted(**options)
    with pytest.raises(InputError, match=f"the adapter on {re.escape(where)} is not plain LoRA on a linear layer"):
        AdapterWeights.of(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"{ACTOR}: .*plain LoRA"):
        AdapterWeights.read(tmp_path / ACTOR)


def test_files_that_are_no_adapter_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"contains no adapter: adapter_config.json is missing"):
        AdapterWeights.read(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(InputError, match=r"contains no adapter: adapter_model.safetensors is missing"):
        AdapterWeights.read(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="the adapter cannot be loaded"):
        AdapterWeights.read(tmp_path)
    save_file({"a.lora_A.weight": torch.zeros(2, 2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match="an adapter of type IA3; adapters by name are LoRA"):
        AdapterWeights.read(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    with pytest.raises(InputError, match="a has only one of its two matrices"):
        AdapterWeights.read(tmp_path)


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ([], {}, "does not hold a JSON object"),
        ({"peft_type": "LORA", "lora_alpha": 2}, {}, "has no matrices"),
        ({"peft_type": "LORA"}, {"q.lora_A.weight": (2, 3), "q.lora_B.weight": (3, 2)}, "q has lora_alpha None"),
        (
            {"peft_type": "LORA", "lora_alpha": 2},
            {"q.lora_A.weight": (0, 3), "q.lora_B.weight": (3, 0)},
            "q has lora_alpha 2 and rank 0",
        ),
    ],
    ids=["list", "empty", "no alpha", "rank 0"],
)
def test_an_incomplete_adapter_is_refused(tmp_path, config, tensors, said):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}: .*{said}"):
        AdapterWeights.read(tmp_path)
