"""A config that asks for more than its weights are is refused before anything is allocated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from bough.errors import InputError
from bough.models.resolve import context_length, end_token_ids, weight_shapes
from bough.policy.adapters import Lora, add_actor, add_reference, load_actor, load_named, read_shape
from bough.policy.load import load_model, load_outline
from tests.policy.families import make

HUGE = 10**6


def changed(folder: Path, file: str = "config.json", **settings: Any) -> Path:
    found = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(found | settings))
    return folder


def saved(folder: Path, family: str, **options: Any) -> Path:
    make(family).save_pretrained(folder, **options)
    return folder


def load(folder: Path) -> Any:
    return load_model(str(folder), dtype=None, device=torch.device("cpu"), quantize=False)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers is not asked to load anything."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("llama", {"hidden_size": HUGE}, r"would be \[200, 1000000\], but .* \[200, 64\]"),
        ("llama", {"hidden_size": 80}, r"embed_tokens\.weight would be \[200, 80\], .* \[200, 64\]"),
        ("llama", {"vocab_size": HUGE}, r"would be \[1000000, 64\], but .* \[200, 64\]"),
        ("llama", {"intermediate_size": 97}, r"would be \[97, 64\], but .* \[96, 64\]"),
        ("llama", {"head_dim": HUGE}, r"would be \[4000000, 64\], but .* \[64, 64\]"),
        ("llama", {"num_hidden_layers": HUGE}, "num_hidden_layers is 1000000, but .* 21 tensors"),
        ("llama", {"num_hidden_layers": 9}, r"describes a model of \d+ weights, but .* \d+ weights in 21"),
        ("qwen3", {"num_hidden_layers": 10**9, "layer_types": None}, "num_hidden_layers is 1000000000, but"),
        ("mixtral", {"num_local_experts": HUGE}, r"describes a model of|would be \[1000000, "),
        ("llama4", {"num_local_experts": HUGE}, r"describes a model of|would be \[1000000, "),
        ("gpt2", {"n_positions": 10**9}, r"would be \[1000000000, 64\], .* \[256, 64\]"),
    ],
)
def test_a_size_that_is_not_that_of_the_weights_is_named(
    tmp_path: Path, family: str, settings: dict[str, Any], said: str
):
    folder = changed(saved(tmp_path, family), **settings)
    for read in (load, lambda folder: load_outline(str(folder))):
        with pytest.raises(InputError, match=said) as refused:
            read(folder)
        assert str(folder / "config.json") in str(refused.value)


@pytest.mark.usefixtures("unloaded")
def test_weights_in_several_files_are_compared_too(tmp_path: Path):
    folder = saved(tmp_path, "llama", max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 1 and len(weight_shapes(folder)) == 21
    with pytest.raises(InputError, match=r"would be \[\d+, 1000000\]"):
        load(changed(folder, hidden_size=HUGE))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma3", "gpt_oss", "mixtral", "llama4", "mamba"])
def test_a_config_that_fits_is_loaded(tmp_path: Path, family: str):
    folder = saved(tmp_path, family)
    found = dict(load(folder).named_parameters())
    assert {name: weight.shape for name, weight in load_outline(str(folder)).named_parameters()} == {
        name: weight.shape for name, weight in found.items()
    }


def test_a_context_and_end_tokens_are_not_read_from_a_config_of_too_many_layers(tmp_path: Path):
    folder = changed(saved(tmp_path, "qwen3"), eos_token_id=7)
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert (context_length(str(folder)), end_token_ids(str(folder))) == (256, [7])
    changed(folder, num_hidden_layers=10**9, layer_types=None)
    assert (context_length(str(folder)), end_token_ids(str(folder))) == (None, [])


def test_settings_that_do_not_fit_each_other_are_told(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot be loaded: .*not a multiple of the number of attention heads"):
        load(changed(saved(tmp_path, "llama"), num_attention_heads=7))


def test_smaller_sizes_than_those_of_the_weights_are_told(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be loaded"):
        load(changed(saved(tmp_path, "llama"), intermediate_size=48))


@pytest.mark.parametrize("settings", [{"r": 10**9}, {"r": 3}, {"rank_pattern": {"q_proj": 10**9}}], ids=str)
def test_an_adapter_of_a_larger_rank_than_its_matrices_is_refused(tmp_path: Path, settings: dict[str, Any]):
    add_actor(make("llama"), Lora(r=2)).save_pretrained(tmp_path, selected_adapters=["actor"])
    folder = changed(tmp_path / "actor", "adapter_config.json", **settings)
    said = r"adapter_config\.json: (r|q_proj) is \d+, but \S+lora_A\.weight in adapter_model\.safetensors is \[2, \d+\]"
    for read in (
        load_actor,
        lambda model, folder: load_named(model, folder, name="a"),
        lambda model, folder: add_reference(add_actor(model, Lora(r=2)), folder),
        lambda _, folder: read_shape(folder),
    ):
        with pytest.raises(InputError, match=said):
            read(make("llama"), folder)
