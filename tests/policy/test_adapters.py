import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import Tensor

from bough.errors import InputError
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import ACTOR, HASHED_WHOLE, AdapterWeights, Lora, grow, weights_digest
from bough.policy.load import load_model, save_policy
from bough.policy.policy import Policy
from bough.types import Call
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
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(InputError, match=r"contains no adapter: adapter_model.safetensors is missing"):
        AdapterWeights.read(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="the adapter cannot be loaded"):
        AdapterWeights.read(tmp_path)


PLAIN = {"peft_type": "LORA", "lora_alpha": 2}


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ([], {}, "it is not a JSON object"),
        ({"peft_type": "IA3"}, {}, "an adapter of type IA3; Bough uses LoRA"),
        (PLAIN, {}, "has no matrices"),
        (PLAIN | {"r": 10**9}, {"q.lora_A.weight": (10**9, 0)}, "has no matrices"),
        (PLAIN | {"layer_replication": [[0, 2]] * 400}, {}, "an adapter with layer_replication is not loaded"),
        (PLAIN, {"q.lora_A.weight": (2, 2)}, "q has only one of its two matrices"),
        (PLAIN | {"lora_alpha": None}, {"q.lora_A.weight": (2, 3), "q.lora_B.weight": (3, 2)}, "q has lora_alpha None"),
    ],
    ids=["list", "IA3", "empty", "empty matrix", "replication", "one matrix", "no alpha"],
)
def test_an_incomplete_adapter_is_refused(tmp_path, config, tensors, said):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}: .*{said}"):
        AdapterWeights.read(tmp_path)


CALLS = [Call(prompt_ids=[5, 6, 7, 9], completion_ids=[8, 11, 2])]


def adapter(folder: Path, lora: Lora) -> Policy:
    torch.manual_seed(1)
    policy = Policy.load("tiny", lora=lora).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    save_policy(policy, load_tokenizer("tiny"), folder)
    return policy


def grown(folder: Path, wanted: Lora) -> Policy:
    model = load_model("tiny", dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    return Policy(grow(model, folder, wanted)).eval()


@pytest.mark.parametrize(
    "wanted",
    [
        Lora(r=16, alpha=8, targets=("k_proj", "q_proj")),
        Lora(r=2, alpha=64, targets=("q_proj", "v_proj")),
        Lora(r=8, alpha=16, targets="all-linear"),
    ],
)
def test_a_grown_adapter_computes_the_same_and_can_be_trained(tmp_path: Path, wanted: Lora):
    small = adapter(tmp_path, Lora(r=4, alpha=12, targets=("q_proj", "v_proj")))
    large = grown(tmp_path, wanted)
    assert torch.allclose(large.logprobs(CALLS)[0], small.logprobs(CALLS)[0], atol=1e-5)
    config = large.model.peft_config["actor"]
    assert config.r == max(4, wanted.r)
    large.logprobs(CALLS)[0].sum().backward()
    new_columns = [p.grad[:, 4:] for n, p in large.named_parameters() if "lora_B" in n and p.grad is not None]
    assert all(column.abs().sum() > 0 for column in new_columns if column.numel())


def test_what_cannot_be_grown_is_said(tmp_path: Path):
    adapter(tmp_path, Lora(r=4, targets=("q_proj",)))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(InputError, match="use_dora cannot be grown"):
        grown(tmp_path, Lora(r=8))


def of(weight: Tensor, name: str = "a") -> str:
    return weights_digest([(name, weight)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("size", [1, 1023, 5000, HASHED_WHOLE + 5000])
def test_one_bit_of_one_weight_is_another_digest(dtype: torch.dtype, size: int):
    weight = torch.arange(size).to(dtype)
    for place in {0, size // 2, size - 1}:
        other = weight.clone()
        other.view(torch.uint8)[place * weight.element_size()] ^= 1
        assert of(other) != of(weight)
    assert of(weight.clone()) == of(weight)


def test_the_same_numbers_in_another_shape_place_or_type_are_other_weights():
    weight = torch.arange(6.0)
    digests = {of(weight), of(weight.view(2, 3)), of(weight, "b"), of(weight.double()), of(torch.arange(7.0)[:6] + 1)}
    assert len(digests) == 5
    blocks = torch.arange(2.0 * HASHED_WHOLE)
    assert of(blocks) != of(blocks.roll(1024))
