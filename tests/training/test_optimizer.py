import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bough.errors import InputError
from bough.training.checkpoint import Decay, OptimizerState, learning_rate, make_optimizer, not_finite


def test_vectors_do_not_decay_and_frozen_weights_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model[0].bias.requires_grad_(False)
    optimizer = make_optimizer(model.named_parameters(), kind="adamw", learning_rate=0.1, weight_decay=0.5)
    assert [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups] == [(1, 0.5), (2, 0.0)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without CUDA")
def test_8_bit_without_cuda_is_an_input_error():
    with pytest.raises(InputError, match="needs CUDA"):
        make_optimizer([("w", nn.Parameter(torch.zeros(2, 2)))], kind="adamw_8bit", learning_rate=0.1, weight_decay=0)


def rates(count: int, decay: Decay, warmup_ratio: float = 0.2) -> list[float]:
    return [learning_rate(i, count, peak=1.0, warmup_ratio=warmup_ratio, decay=decay) for i in range(count)]


def test_warm_up_then_linear_decay():
    assert rates(10, "linear") == pytest.approx([1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


@settings(deadline=None)
@given(st.integers(1, 200), st.sampled_from(["cosine", "linear", "constant"]), st.floats(0, 1))
def test_the_rate_is_never_zero_and_never_rises_again(count: int, decay: Decay, ratio: float):
    values = rates(count, decay, ratio)
    assert all(0 < value <= 1 for value in values)
    top = values.index(max(values))
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)


def test_the_first_tensor_that_is_not_finite_is_named():
    good, bad = torch.ones(2), torch.tensor([1.0, float("inf")])
    assert not_finite({"a": good, "b": torch.tensor([3]), "c": torch.empty(0)}) is None
    assert not_finite({"a": good, "b": bad, "c": bad * 0}) == "b"


def test_a_state_goes_into_another_optimizer_of_the_same_weights():
    def made() -> torch.optim.Optimizer:
        torch.manual_seed(0)
        return torch.optim.AdamW(nn.Linear(2, 1).parameters(), lr=0.1)

    before, after = made(), made()
    for group in before.param_groups:
        for weight in group["params"]:
            weight.grad = torch.full_like(weight, 0.5)
    before.step()
    OptimizerState.of(before).checked(after).put_into(after)
    old, new = (one.state_dict()["state"] for one in (before, after))
    assert all(torch.equal(old[i][name], new[i][name]) for i in old for name in old[i]) and len(old) == 2
