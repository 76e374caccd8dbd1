import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from bough.engines.local.adapters import Fold, Joined, Slots, Stack, base, folded, pays, rounded_at_random
from bough.engines.local.engine import LocalEngine
from bough.errors import InputError
from bough.policy.adapters import ACTOR, Lora, LoraPair
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


STEP = 2.0**-7  # from 1 to the next bfloat16


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_value_becomes_one_of_its_neighbours_as_often_as_keeps_the_mean():
    for sign in (1.0, -1.0):
        rounded = rounded_at_random(torch.full((40_000,), sign * (1 + STEP / 4)), generator())
        assert rounded.dtype == torch.bfloat16
        assert set(rounded.tolist()) == {sign, sign * (1 + STEP)}
        share_up = (rounded.float().abs() > 1).float().mean()
        assert abs(share_up - 0.25) < 0.01  # its standard deviation is 0.002


def test_what_bfloat16_can_hold_keeps_its_bits():
    values = torch.randn(1000, generator=generator()).bfloat16()
    values[:4] = torch.tensor([0.0, -0.0, float("inf"), float("-inf")])
    assert torch.equal(rounded_at_random(values.float(), generator()), values)


def test_what_is_not_a_number_stays_so_with_all_of_its_bits_set():
    """That is the NaN of a GPU's products; one more bit and it is a zero."""
    values = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).repeat(100).view(torch.float32)
    assert rounded_at_random(values, generator()).isnan().all()


def test_an_adapter_too_small_for_rounding_to_the_nearest_is_kept_on_average():
    weight_OI = torch.full((4, 10_000), 1.0, dtype=torch.bfloat16)
    down_RI, up_OR = torch.full((1, 10_000), STEP / 10), torch.ones(4, 1)
    nearest = (weight_OI.float() + up_OR @ down_RI).bfloat16()
    assert torch.equal(nearest, weight_OI)
    kept_O = (folded(weight_OI, down_RI, up_OR, torch.bfloat16, generator()).float() - 1).sum(1)
    assert ((kept_O / (10_000 * STEP / 10) - 1).abs() < 0.15).all()  # four standard deviations are 0.12


def test_weights_in_32_bits_are_first_what_they_are_computed_with():
    """Rounding them at random too would take them further from what training computes."""
    weight_OI = torch.randn(8, 64, generator=generator())
    nothing = torch.zeros(1, 64), torch.zeros(8, 1)
    assert torch.equal(folded(weight_OI, *nothing, torch.bfloat16, generator()), weight_OI.bfloat16())


SIZES, WIDTH = [5, 3], 6


def pair(rank: int, size: int, seed: int) -> LoraPair:
    generator = torch.Generator().manual_seed(seed)
    return LoraPair(torch.randn(rank, WIDTH, generator=generator), torch.randn(size, rank, generator=generator))


def added(stack: Stack, slots: Slots, x: torch.Tensor, names: list[str]) -> torch.Tensor:
    low, up = stack.factors(x, slots.others(torch.tensor([slots[name] for name in names])))
    return low @ up


def expected(x: torch.Tensor, pairs: list[LoraPair | None]) -> torch.Tensor:
    parts = [
        torch.zeros(len(x), size) if one is None else x @ one.down_RI.T @ one.up_OR.T
        for size, one in zip(SIZES, pairs, strict=True)
    ]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_each_row_is_computed_with_its_own_adapter_while_adapters_come_go_and_grow(first):
    slots, stack = Slots(), Stack(SIZES, WIDTH, first=first, dtype=torch.float32, device=torch.device("cpu"))
    own = [pair(2, 5, 99), None] if first == 0 else [None, None]
    if first == 0:
        stack.put(0, slots.capacity, own)
    known = {"": own}
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    for number, rank in enumerate([3, 9, 1, 20, 2, 4]):
        known[f"{number}"] = [pair(rank, 5, number), pair(2, 3, 50 + number) if number % 2 else None]
        stack.put(slots.take(f"{number}"), slots.capacity, known[f"{number}"])
        if number == 3:  # its slot is taken by the next
            stack.put(slots["1"], slots.capacity, [None, None])
            slots.free("1")
            del known["1"]
        names = [list(known)[i % len(known)] for i in range(len(x))]
        sums = torch.stack([expected(x[i : i + 1], known[name])[0] for i, name in enumerate(names)])
        torch.testing.assert_close(added(stack, slots, x, names), sums, rtol=1e-4, atol=1e-4)


def test_only_growth_and_the_first_and_last_adapter_need_new_graphs():
    slots, stack = Slots(), Stack(SIZES, WIDTH, first=1, dtype=torch.float32, device=torch.device("cpu"))
    versions = []
    for name in "abcde":
        grown = stack.put(slots.take(name), slots.capacity, [pair(2, 5, 0), None])
        versions.append((slots.version, grown))
    assert versions == [(1, True), (1, False), (1, False), (1, False), (1, True)]
    assert not stack.put(slots["b"], slots.capacity, [pair(8, 5, 0), None])
    assert stack.put(slots["b"], slots.capacity, [pair(8, 5, 0), pair(1, 3, 0)])
    for name in "abcde":
        slots.free(name)
    assert slots.version == 2 and not slots
