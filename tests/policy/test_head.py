import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bough.policy import head as head_file
from bough.policy.head import Head, predict

M, D, V = 300, 8, 50


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(head_file, "CHUNK_LOGITS", 128 * V)


def inputs(trained: bool):
    torch.manual_seed(0)
    layer = nn.Linear(D, V)
    layer.requires_grad_(trained)
    return torch.randn(M, D, requires_grad=True), torch.randint(0, V, (M,)), layer, torch.randn(M)


def test_probabilities_and_entropies_that_are_known():
    layer = nn.Linear(1, 4, bias=False)
    layer.weight.data.zero_()
    logprobs, entropies, greedy = predict(torch.ones(2, 1), torch.tensor([0, 3]), Head(layer, 4))
    assert logprobs.tolist() == pytest.approx([-math.log(4)] * 2)
    assert entropies.tolist() == pytest.approx([math.log(4)] * 2)
    assert greedy.all()


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("scale", "softcap", "temperature"), [(1.0, None, 1.0), (0.25, None, 1.0), (1.0, 0.5, 1.0), (0.25, 0.5, 0.7)]
)
def test_values_and_gradients_are_those_of_whole_logits(trained, scale, softcap, temperature):
    hidden, targets, layer, weights = inputs(trained)
    wanted = [hidden, *layer.parameters()] if trained else [hidden]
    logprobs, entropies, greedy = predict(hidden, targets, Head(layer, V, scale, softcap, temperature))
    found = torch.autograd.grad((logprobs * weights).sum(), wanted)

    logits = layer(hidden) * scale
    logits = logits if softcap is None else torch.tanh(logits / softcap) * softcap
    whole = (logits / temperature).log_softmax(-1)
    expected = torch.autograd.grad((whole[torch.arange(M), targets] * weights).sum(), wanted)
    torch.testing.assert_close(logprobs, whole[torch.arange(M), targets])
    torch.testing.assert_close(entropies, -(whole.exp() * whole).sum(-1))
    torch.testing.assert_close(found, expected)
    assert not entropies.requires_grad and not greedy.requires_grad
    assert torch.equal(greedy, whole.argmax(-1) == targets)


@pytest.mark.parametrize("trained", [True, False])
def test_no_tensor_is_larger_than_a_chunk_of_logits(trained):
    hidden, targets, layer, weights = inputs(trained)
    with Largest() as largest:
        (predict(hidden, targets, Head(layer, V)).logprobs_M * weights).sum().backward()
    assert largest.numel == 128 * V < M * V


@pytest.mark.parametrize("trained", [True, False])
def test_a_nearly_sure_token_keeps_its_gradient_in_bfloat16(trained):
    layer = nn.Linear(1, 2, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.tensor([[8.0], [0.0]], dtype=torch.bfloat16)
    layer.requires_grad_(trained)
    hidden = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    predict(hidden, torch.tensor([0]), Head(layer, 2)).logprobs_M.sum().backward()
    assert hidden.grad.item() == pytest.approx(8 * (1 - torch.sigmoid(torch.tensor(8.0)).item()), rel=0.01)
