import torch
from torch import nn

from bough.training.optimizer import OptimizerState, not_finite


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
