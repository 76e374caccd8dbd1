import pytest
import torch
import transformers

from bough.errors import InputError
from bough.models.miniature import miniature
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import (
    Lora,
    add_actor,
    expert_parameters,
    freeze_surroundings,
    load_actor,
    out_of_reach,
    read_shape,
)
from bough.policy.load import merged, save_policy
from bough.policy.policy import Policy
from bough.policy.probe import CALLS
from tests.policy.families import make


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def small(name: str, auto=transformers.AutoModelForCausalLM, **settings):
    with torch.device("meta"):
        return miniature(auto.from_config(getattr(transformers, name)(**settings)))


def seeing(name: str):
    return small(name, transformers.AutoModelForImageTextToText)


def adapted(policy: Policy) -> set[str]:
    return {name.split(".lora_")[0] for name, parameter in policy.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", ["Gemma3Config", "LlavaConfig", "Qwen3VLConfig"])
def test_of_a_model_that_sees_only_the_language_model_gets_an_adapter(name):
    policy = Policy(add_actor(seeing(name), Lora(r=2)))
    towers = [n for n, m in policy.base.named_modules() if "vision" in n and isinstance(m, torch.nn.Linear)]
    assert towers or name == "Qwen3VLConfig"
    assert adapted(policy) and all(".language_model.layers." in layer for layer in adapted(policy))
    torch.cat(policy.logprobs(CALLS)).sum().backward()
    assert all(parameter.grad is not None for parameter in policy.parameters() if parameter.requires_grad)


def test_without_an_adapter_what_surrounds_the_language_model_is_frozen():
    model = seeing("Gemma3Config").requires_grad_()
    freeze_surroundings(model)
    torch.cat(Policy(model).logprobs(CALLS)).sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained and all("language_model" in name or "lm_head" in name for name in trained)


def test_a_model_of_text_alone_is_reached_everywhere():
    assert out_of_reach(make("llama"), all_linear=True) is None
    assert out_of_reach(make("llama4"), all_linear=False) is None
    assert out_of_reach(make("llama4"), all_linear=True) == r"(model\.layers\.\d+\.feed_forward\.router)(\..*)?"
    assert out_of_reach(make("mamba2"), all_linear=True) == r"(backbone\.layers\.\d+\.mixer\.out_proj)(\..*)?"


@pytest.mark.parametrize("name", ["LongcatFlashConfig", "MambaConfig", "JambaConfig"])
def test_an_adapter_that_would_not_be_felt_is_not_made_so_merging_changes_nothing(name):
    model = add_actor(small(name), Lora(r=2))
    policy = Policy(model)
    torch.cat(policy.logprobs(CALLS)).sum().backward()
    torch.manual_seed(0)
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, parameter_name
        if "lora_B" in parameter_name:
            parameter.data.normal_(std=0.05)
    with torch.no_grad():
        adapted = torch.cat(policy.logprobs(CALLS))
        whole = torch.cat(Policy(merged(model)).logprobs(CALLS))
    torch.testing.assert_close(whole, adapted, atol=1e-4, rtol=0)


def test_an_adapter_of_weights_that_layers_share_is_not_merged():
    with pytest.raises(InputError, match="ZambaForCausalLM uses some weights in several layers"):
        merged(add_actor(small("ZambaConfig"), Lora(r=2)))


@pytest.mark.parametrize("name", ["Qwen3MoeConfig", "GptOssConfig", "Llama4TextConfig", "JetMoeConfig"])
def test_experts_are_adapted_saved_and_loaded(name, tmp_path):
    policy = Policy(add_actor(small(name), Lora(r=2, experts=True)))
    assert any("experts" in layer for layer in adapted(policy))
    before = torch.cat(policy.logprobs(CALLS))
    before.sum().backward()
    torch.manual_seed(0)
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad
        if "lora_B" in parameter_name:
            parameter.data.normal_(std=0.1)
    with torch.no_grad():
        after = torch.cat(policy.logprobs(CALLS))
        with policy.reference():
            torch.testing.assert_close(torch.cat(policy.logprobs(CALLS)), before.detach())
        save_policy(policy, load_tokenizer("tiny"), tmp_path)
        again = Policy(load_actor(small(name), tmp_path))
        torch.testing.assert_close(torch.cat(again.logprobs(CALLS)), after)
    assert (after - before).abs().max() > 0.1
    assert read_shape(tmp_path).experts


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (Lora(experts=True), r"LlamaForCausalLM \(llama\) has no experts an adapter can reach.*gpt-oss.*bfloat16"),
        (Lora(experts=True, dropout=0.1), "lora_experts needs lora_dropout 0"),
    ],
)
def test_what_cannot_be_adapted_is_said(lora, message):
    with pytest.raises(InputError, match=message):
        add_actor(make("llama"), lora)


def test_experts_are_found_by_what_they_are():
    assert expert_parameters(make("gpt_oss")) == ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
