"""Linear layers as one product, with the policy's own adapter in their weights or beside them."""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from bough.engines.local.adapters import Slots
from bough.engines.local.joined import Joined, base
from bough.policy.adapters import ACTOR, LoraPair

X = torch.randn(3, 16, generator=torch.Generator().manual_seed(5))


def layers(dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    """Two layers of the same input; the first has the actor."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"q": nn.Linear(16, 8), "k": nn.Linear(16, 4, bias=False)}).to(dtype)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=6, target_modules=["q"]), adapter_name=ACTOR)
    nn.init.normal_(adapted.base_model.model["q"].lora_B[ACTOR].weight)
    return list(adapted.base_model.model.values())


def outputs(both: list[nn.Module]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([layer(X) for layer in both], 1)


def test_in_the_weights_or_beside_them_the_adapter_computes_what_the_layers_do():
    both = layers()
    for fold in (True, False):
        joined = Joined(both, torch.float32, fold=fold)
        assert joined.folded == fold and (joined.down_RI is None) == fold
        assert torch.allclose(joined(X), outputs(both), atol=1e-5)
    assert not torch.equal(joined.weight_OI[:8], Joined(both, torch.float32).weight_OI[:8])


def test_the_newest_adapter_is_folded_in_place_and_only_once():
    both = layers()
    joined = Joined(both, torch.float32)
    place = joined.weight_OI.data_ptr()
    nn.init.normal_(both[0].lora_B[ACTOR].weight)
    joined.renew()
    joined.renew()
    assert joined.weight_OI.data_ptr() == place
    assert torch.allclose(joined(X), outputs(both), atol=1e-5)


def test_beside_adapters_by_name_the_weights_are_bare_and_afterwards_as_before():
    both = layers(torch.bfloat16)
    joined, slots = Joined(both, torch.bfloat16, seed=3), Slots()
    before = joined.weight_OI.clone()
    bare = torch.cat([base(layer).weight.data for layer in both])
    assert not torch.equal(before[:8], bare[:8]) and torch.equal(before[8:], bare[8:])
    slot = slots.take("red")
    joined.keep_apart(True)
    joined.put(slot, slots.capacity, [None, LoraPair(torch.randn(2, 16), torch.randn(4, 2))])
    assert torch.equal(joined.weight_OI, bare)
    joined.keep_apart(False)
    assert torch.equal(joined.weight_OI, before)


def test_each_token_has_its_own_adapter_and_the_policys_is_one_of_them():
    both = layers()
    joined, slots = Joined(both, torch.float32), Slots()
    red = LoraPair(torch.randn(2, 16), torch.randn(4, 2))
    slot = slots.take("red")
    joined.keep_apart(True)
    joined.put(slot, slots.capacity, [None, red])
    out = joined(X, slots.others(torch.tensor([0, slot, 0])))
    plain = torch.cat([base(layer)(X) for layer in both], 1).detach()
    plain[:, 8:] += X @ red.down_RI.T @ red.up_OR.T
    assert torch.allclose(out[[0, 2]], outputs(both)[[0, 2]], atol=1e-5)
    assert torch.allclose(out[1], plain[1], atol=1e-5)


def test_a_type_that_would_lose_the_adapter_keeps_it_beside_the_weights():
    joined = Joined(layers(torch.float16), torch.float16)
    assert not joined.folded and joined.down_RI is not None
