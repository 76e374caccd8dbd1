"""The local engine beside training: when both compute at the same time, and what memory it leaves on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bough.methods.grpo import GRPOConfig
from bough.online.sampler import LocalSampler, _collides
from bough.policy.policy import Policy
from bough.training.token_budget import training_bytes

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


@pytest.mark.parametrize(("device", "left"), [("cpu", False), ("cuda", True)])
def test_the_engine_leaves_what_training_takes_on_a_gpu(device: str, left: bool, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    engine = SimpleNamespace(twin=None)
    monkeypatch.setattr("bough.online.sampler.LocalEngine.of", lambda *_, **more: asked.append(more) or engine)
    tiny = Policy.load("tiny")
    policy: Any = SimpleNamespace(device=torch.device(device), base=tiny.base, model=tiny.model, has_adapter=False)
    template: Any = SimpleNamespace(tokenizer=None)
    LocalSampler(GRPOConfig(**CONFIG, token_budget=4096), policy, template)
    needed = training_bytes(tiny.base, 4096, adapter=False)
    assert needed > 0 and asked[0]["training_bytes"] == (needed if left else 0)
