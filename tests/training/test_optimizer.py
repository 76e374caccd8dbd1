import pytest
import torch
from torch import nn

from bough.errors import InputError
from bough.training.optimizer import make_optimizer


def test_vectors_do_not_decay_and_frozen_weights_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model[0].bias.requires_grad_(False)
    optimizer = make_optimizer(model.named_parameters(), kind="adamw", learning_rate=0.1, weight_decay=0.5)
    assert [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups] == [(1, 0.5), (2, 0.0)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without CUDA")
def test_8_bit_without_cuda_is_an_input_error():
    with pytest.raises(InputError, match="needs CUDA"):
        make_optimizer([("w", nn.Parameter(torch.zeros(2, 2)))], kind="adamw_8bit", learning_rate=0.1, weight_decay=0)
