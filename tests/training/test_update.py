from pathlib import Path

import pytest
import torch

from bough.methods.sft import SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.training.update import Updater


def test_an_update_sets_the_rate_of_its_step_and_clips_what_it_applies():
    torch.manual_seed(0)
    policy = Policy.load("tiny", lora=Lora(r=4))
    config = SFTConfig(
        train_file=Path("a"), learning_rate=0.5, lr_scheduler="linear", warmup_ratio=0.0, max_grad_norm=2.0
    )
    updater = Updater(policy, config)
    assert updater.set_learning_rate(3, 4) == 0.125
    assert {group["lr"] for group in updater.optimizer.param_groups} == {0.125}
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    first = trained[0]
    assert first.grad is not None
    first.grad.view(-1)[0] = 10.0
    before = first.detach().clone()
    assert updater.clip() == pytest.approx(10.0)
    assert first.grad.view(-1)[0].item() == pytest.approx(2.0)
    assert updater.apply() and first.grad is None
    assert not torch.equal(first, before)
