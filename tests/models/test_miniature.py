import pytest
import torch
import transformers

from bough.errors import BoughError
from bough.models.miniature import miniature


def outline(name: str, **settings):
    """A model of its class's default size, without weights."""
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings))


def kinds(model) -> set[str]:
    names = {type(module).__name__ for module in model.modules() if "transformers" in type(module).__module__}
    return {name for name in names if not name.endswith("Activation")}


@pytest.mark.parametrize(
    "name",
    [
        "Gemma4TextConfig",
        "Qwen3NextConfig",
        "Lfm2Config",
        "Mamba2Config",
        "NemotronHConfig",
        "Llama4TextConfig",
        "Gemma3nTextConfig",
    ],
)
def test_a_miniature_has_layers_of_every_kind_and_is_small(name):
    model = outline(name)
    small = miniature(model)
    assert kinds(small) == kinds(model)
    assert sum(parameter.numel() for parameter in small.parameters()) < 1_000_000
    with torch.no_grad():
        assert small(input_ids=torch.arange(3, 43)[None], use_cache=False).logits.isfinite().all()
    assert {parameter.dtype for parameter in small.parameters()} == {torch.float32}


def test_relations_between_sizes_stay():
    one = miniature(outline("LlamaConfig", num_key_value_heads=1)).config
    some = miniature(outline("LlamaConfig", num_key_value_heads=8)).config
    all_ = miniature(outline("LlamaConfig", num_key_value_heads=32)).config
    assert [c.num_attention_heads // c.num_key_value_heads for c in (one, some, all_)] == [4, 2, 1]
    kept = miniature(outline("Gemma2Config", sliding_window=4096, attn_logit_softcapping=7.0)).config
    assert (kept.sliding_window, kept.attn_logit_softcapping) == (8, 7.0)
    assert set(kept.layer_types) == {"sliding_attention", "full_attention"}


def test_the_same_config_gives_the_same_weights_and_biases_that_start_at_zero_are_felt():
    one, other = (miniature(outline("Qwen2Config")).state_dict() for _ in range(2))
    assert all(one[name].equal(other[name]) for name in one)
    assert one["model.layers.0.self_attn.q_proj.bias"].abs().min() > 0


def test_what_cannot_be_made_small_is_said():
    model = outline("LlamaConfig")
    model.config.hidden_act = "unheard_of"
    with pytest.raises(BoughError, match=r"no small copy of LlamaForCausalLM can be made \(KeyError"):
        miniature(model)
    model = outline("GPT2Config")
    model.config = transformers.PreTrainedConfig()
    with pytest.raises(BoughError, match="names no number of layers"):
        miniature(model)
