import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bough.errors import InputError
from bough.policy.adapters import Lora, add_actor
from bough.policy.policy import Policy
from tests.policy.families import SHAPE, make
from tests.trees.samples import call

CALLS = [call([1, 2, 3], [4, 5]), call([1, 2, 3], [6])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make("llama").save_pretrained(path)
    return path


def test_only_the_adapter_is_trained(folder):
    policy = Policy.load(str(folder), lora=Lora(r=2), dtype=torch.bfloat16)
    trained = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert trained and all("lora" in name and "lm_head" not in name for name in trained)
    # A new adapter changes nothing yet.
    torch.testing.assert_close(policy.logprobs(CALLS), Policy.load(str(folder), dtype=torch.bfloat16).logprobs(CALLS))


def test_an_adapter_folder_is_loaded_onto_its_base_model(folder, tmp_path):
    policy = Policy.load(str(folder), lora=Lora(r=2))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    policy.model.save_pretrained(tmp_path, selected_adapters=["actor"])
    for loaded in (Policy.load(str(folder), adapter=str(tmp_path / "actor")), Policy.load(str(tmp_path / "actor"))):
        torch.testing.assert_close(loaded.logprobs(CALLS), policy.logprobs(CALLS))
        assert any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize(
    ("family", "noise"),
    [
        ("gpt2", {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("opt", {"dropout": 0.5, "layerdrop": 0.9}),
        ("mixtral", {"router_jitter_noise": 0.5}),
    ],
)
def test_nothing_is_dropped_out_or_blurred(family, noise, tmp_path):
    model = make(family)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | noise))
    policy = Policy.load(str(tmp_path), device="cpu").train()
    torch.testing.assert_close(policy.logprobs(CALLS), Policy(model).logprobs(CALLS))


DBRX = {
    "attn_config": {"attn_pdrop": 0.5, "kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0.5},
}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("DbrxConfig", {"d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": 200, "max_seq_len": 64} | DBRX),
        # The larger its "noise", the more experts training draws from.
        ("PhimoeConfig", SHAPE | {"num_hidden_layers": 1, "num_local_experts": 8, "router_jitter_noise": 9.0}),
        # In eval mode it divides weights, and not those of adapters beside them.
        ("RwkvConfig", {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 4, "rescale_every": 1}),
    ],
)
def test_training_computes_what_sampling_does_where_a_model_has_its_own_way_to_differ(kind, settings, tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(tmp_path)
    policy = Policy.load(str(tmp_path), device="cpu", lora=Lora(r=2))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    with torch.no_grad():
        sampled, trained = policy.eval().logprobs(CALLS), policy.train().logprobs(CALLS)
    torch.testing.assert_close(trained, sampled)


def test_mistakes_are_told(folder, tmp_path):
    with pytest.raises(InputError, match="needs a CUDA device"):
        Policy.load(str(folder), quantize=True, device="cpu")
    with pytest.raises(InputError, match="either it or a new lora"):
        Policy.load(str(folder), lora=Lora(), adapter=tmp_path)
    with pytest.raises(InputError, match="contains no adapter"):
        Policy.load(str(folder), adapter=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(InputError, match="cannot be loaded"):
        Policy.load(str(tmp_path))


def rewrite(folder, name, **settings):
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | settings))


def index(folder, file):
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    weights = {"model.embed_tokens.weight": file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "SafetensorError"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 7 + b"\x40{}"), "its header has"),
        (lambda folder: rewrite(folder, "config.json", quantization_config={"quant_method": "gptq"}), "GPTQ"),
        (lambda folder: rewrite(folder, "config.json", _attn_implementation="org/kernel:f"), "kernel"),
        (lambda folder: (folder / "generation_config.json").write_text("[" * 100_000), ""),
        (lambda folder: index(folder, "/etc/passwd"), "names '/etc/passwd', which is not a file in its folder"),
        (lambda folder: index(folder, "../other.safetensors"), "which is not a file in its folder"),
        (lambda folder: index(folder, 7), "which is not a file in its folder"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_model_is_told_in_one_sentence(folder, tmp_path, damage, said):
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    damage(copy)
    with pytest.raises(InputError, match=rf"the model {copy} cannot be loaded: .*{said}"):
        Policy.load(str(copy), device="cpu")


def test_weights_in_a_pickle_are_not_loaded(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    torch.save(make("llama").state_dict(), copy / "pytorch_model.bin")
    Policy.load(str(copy), device="cpu")
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"pytorch_model\.bin is a pickle.* save the model as safetensors"):
        Policy.load(str(copy), device="cpu")


def test_an_adapter_in_a_pickle_is_not_loaded(folder, tmp_path):
    add_actor(make("llama"), Lora(r=2)).save_pretrained(tmp_path, selected_adapters=["actor"])
    adapter = tmp_path / "actor"
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"contains no adapter: adapter_model\.safetensors is missing"):
        Policy.load(str(folder), adapter=adapter, device="cpu")


@pytest.mark.parametrize("shape", [{"hidden_size": 32}, {"num_hidden_layers": 1}], ids=str)
def test_an_adapter_of_another_model_is_told_with_its_base(folder, tmp_path, shape):
    other = make("llama", **shape)
    add_actor(other, Lora(r=2, targets=("q_proj",))).save_pretrained(tmp_path, selected_adapters=["actor"])
    config = json.loads((tmp_path / "actor" / "adapter_config.json").read_text())
    (tmp_path / "actor" / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "other"}))
    with pytest.raises(InputError, match=r"not one of this model but of other: (size mismatch|missing adapter keys) "):
        Policy.load(str(folder), adapter=tmp_path / "actor")
