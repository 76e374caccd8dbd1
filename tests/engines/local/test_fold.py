import pytest
import torch
from peft import LoraConfig, get_peft_model

from bough.engines.local.adapters import Fold, pays
from bough.engines.local.engine import LocalEngine
from bough.errors import InputError
from bough.policy.adapters import ACTOR, Lora
from bough.policy.policy import Policy
from tests.policy.families import make

TOKENS = torch.arange(3, 23)[None]


def adapted() -> Policy:
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=4, alpha=8)).eval()
    change(policy, 0.3)
    return policy


def change(policy: Policy, std: float) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=std, generator=generator)


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.base(input_ids=TOKENS, use_cache=False).logits


def test_folded_weights_say_what_the_adapter_says_and_not_what_the_base_says():
    policy = adapted()
    expected = logits(policy)
    with policy.reference():
        base = logits(policy)
    with Fold(policy.model).inside():
        folded = logits(policy)
    assert (folded - expected).abs().max() < 1e-4
    assert (folded - base).abs().max() > 0.1


def test_the_policys_own_weights_are_the_same_bits_and_the_same_tensors_afterwards():
    policy = adapted()
    expected = logits(policy)
    before = {name: (weight.data_ptr(), weight.clone()) for name, weight in policy.named_parameters()}
    with pytest.raises(ZeroDivisionError), Fold(policy.model).inside():
        raise ZeroDivisionError
    for name, weight in policy.named_parameters():
        assert weight.data_ptr() == before[name][0] and torch.equal(weight, before[name][1])
    assert torch.equal(logits(policy), expected)


def test_renewed_inside_it_takes_the_newest_adapter_and_adds_it_to_the_base_only_once():
    policy = adapted()
    fold = Fold(policy.model)
    with fold.inside():
        change(policy, 0.1)
        fold.renew()
        fold.renew()
        folded = logits(policy)
    assert (folded - logits(policy)).abs().max() < 1e-4


def test_it_may_be_entered_twice():
    policy = adapted()
    fold, expected = Fold(policy.model), logits(policy)
    with fold.inside():
        with fold.inside():
            inner = logits(policy)
        outer = logits(policy)
    assert torch.equal(inner, outer) and (outer - expected).abs().max() < 1e-4
    assert torch.equal(logits(policy), expected)


def test_it_takes_as_much_memory_as_the_adapted_layers():
    policy = adapted()
    adapted_weights = [w for name, w in policy.named_parameters() if "base_layer.weight" in name]
    folded = sum(weight.nbytes for weight in Fold(policy.model)._folded)
    assert folded == sum(weight.nbytes for weight in adapted_weights) > 0


@pytest.mark.parametrize("special", [{"use_dora": True}, {"target_modules": ["embed_tokens"]}])
def test_adapters_of_other_kinds_are_refused(special):
    config = LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | special)
    model = get_peft_model(make("llama"), config, adapter_name=ACTOR)
    with pytest.raises(InputError, match="cannot be folded"):
        Fold(model)
    assert not pays(model)


def test_by_itself_an_engine_folds_where_nothing_is_lost():
    assert LocalEngine.of(adapted(), max_tokens=512).reader.fold is not None
    assert LocalEngine.of(adapted(), max_tokens=512, fold=False).reader.fold is None
    assert LocalEngine.of(Policy.load("tiny", device="cpu"), max_tokens=512).reader.fold is None
    assert pays(adapted().model) and not pays(adapted().model.to(torch.bfloat16))
