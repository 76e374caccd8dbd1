from pathlib import Path

import pytest
import torch
from torch import nn

from bough.methods.sft import SFTConfig
from bough.training.step import Updater


def test_a_guarded_update_changes_nothing_where_it_is_told_so(monkeypatch: pytest.MonkeyPatch):
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: adamw(groups, lr=lr, fused=True))
    weight = nn.Parameter(torch.ones(3, 2))
    updater = Updater(Single(weight), SFTConfig(train_file=Path("a"), use_lora=False))
    assert updater.guarded
    updater.set_learning_rate(0, 1)
    for broken in (False, True):
        before = weight.detach().clone()
        weight.grad = torch.ones_like(weight)
        updater.clip()
        updater.apply(torch.tensor(broken))
        assert torch.equal(weight, before) == broken and weight.grad is None
    assert float(updater.optimizer.state[weight]["step"]) == 1.0


@pytest.mark.parametrize(("settings", "guarded"), [({"fp16": True}, False), ({"shard": True}, False), ({}, True)])
def test_an_update_is_guarded_where_the_optimizer_is_fused_alone(
    settings: dict[str, bool], guarded: bool, monkeypatch: pytest.MonkeyPatch
):
    policy, config = Single(nn.Parameter(torch.ones(2, 2))), SFTConfig(train_file=Path("a"), **settings)
    assert not Updater(policy, config).guarded
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: adamw(groups, lr=lr, fused=True))
    assert Updater(policy, config).guarded == guarded


def test_gradients_may_overflow_down_to_a_loss_scale_of_one():
    policy = Single(nn.Parameter(torch.ones(2, 2)))
    scaled = Updater(policy, SFTConfig(train_file=Path("a"), fp16=True))
    for scale, may in ((65536.0, True), (1.0, True), (0.5, False)):
        scaled.scaler.load_state_dict(scaled.scaler.state_dict() | {"scale": scale})
        assert scaled.may_overflow == may
    assert not Updater(policy, SFTConfig(train_file=Path("a"))).may_overflow


class Single(nn.Module):
    """One weight."""

    device = torch.device("cpu")

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
