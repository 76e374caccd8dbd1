"""When the local engine samples while the policy trains: on a GPU not beside what needs all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bough.methods.grpo import GRPOConfig
from bough.online.sampler import _collides

CONFIG: dict[str, Any] = {"environment": "household", "max_steps": 1}


@pytest.mark.parametrize(
    ("device", "graphs", "dropout", "waits_beside"),
    [
        ("cpu", True, 0.1, None),
        ("cuda", False, 0.0, None),
        ("cuda", True, 0.0, "--cuda-graphs"),
        ("cuda", False, 0.1, "dropout"),
        ("cuda", True, 0.1, "--cuda-graphs and dropout"),
    ],
)
def test_the_sampler_waits_on_a_gpu_beside_graphs_and_dropout_alone(
    device: str, graphs: bool, dropout: float, waits_beside: str | None, caplog: pytest.LogCaptureFixture
):
    policy: Any = SimpleNamespace(device=torch.device(device), model=nn.Dropout(dropout))
    assert _collides(GRPOConfig(**CONFIG, cuda_graphs=graphs), policy) is (waits_beside is not None)
    said = f"The sampler waits while the policy trains: it cannot sample beside {waits_beside}."
    assert caplog.messages == ([said] if waits_beside else [])
