"""The estimate of a divergence that the clipped surrogate measures."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.methods.surrogate import k3


def test_k3_is_exact_for_small_log_ratios_and_smooth_at_its_bound():
    small = torch.tensor([1e-4, -1e-4, 0.0])
    assert k3(small).tolist() == pytest.approx([0.5e-8, 0.5e-8, 0.0], rel=1e-2)
    edge = torch.tensor([19.9999, 20.0001, 21.0], dtype=torch.float64, requires_grad=True)
    k3(edge).sum().backward()
    assert edge.grad.tolist() == pytest.approx([math.exp(20)] * 3, rel=2e-4)
    assert k3(edge)[2].item() == pytest.approx(2 * math.exp(20) - 22)


@settings(deadline=None, max_examples=50)
@given(st.floats(-60, 60))
def test_k3_is_never_negative(log_ratio):
    assert k3(torch.tensor([log_ratio], dtype=torch.float64)).item() >= 0
