"""The local engine beside training: when both compute at the same time, and what memory it leaves on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.groups import SamplingConfig
from bough.event_loop import BackgroundLoop
from bough.methods.grpo import GRPOConfig
from bough.online.samplers import LocalSampler, _collides
from bough.online.schedule import Ages
from bough.policy.policy import Policy
from bough.training.plan import training_bytes
from bough.types import Call
from tests.engines.local.playing import prompt

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
    monkeypatch.setattr("bough.online.samplers.LocalEngine.of", lambda *_, **more: asked.append(more) or engine)
    tiny = Policy.load("tiny")
    policy: Any = SimpleNamespace(device=torch.device(device), base=tiny.base, model=tiny.model, has_adapter=False)
    template: Any = SimpleNamespace(tokenizer=None)
    LocalSampler(GRPOConfig(**CONFIG, token_budget=4096), policy, template)
    needed = training_bytes(tiny.base, 4096, adapter=False)
    assert needed > 0 and asked[0]["training_bytes"] == (needed if left else 0)


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_each_turn_of_an_episode_is_sampled_from_the_weights_that_it_names(max_staleness: int):
    """However many versions an episode lives through: no call has states of older weights than its age says."""
    policy, template = Policy.load("tiny", device="cpu").eval(), SimpleNamespace(tokenizer=None)
    config = GRPOConfig(**CONFIG, max_staleness=max_staleness)
    sampler, loop = LocalSampler(config, policy, template), BackgroundLoop()  # type: ignore[arg-type]
    torch.manual_seed(0)
    ids = prompt("start", 60)
    for step in range(3):
        with torch.no_grad():
            for weight in policy.parameters():
                weight += 0.02 * torch.randn_like(weight)
        sampler.renew(f"step-{step}")
        asked = sampler.tokens.generate("e", ids, sampling=SamplingConfig(max_new_tokens=8), seed=step, stop_ids=[])
        drawn = loop.run(asked)
        call = Call(prompt_ids=ids, completion_ids=drawn.completion_ids, policy=drawn.policy)
        assert call.policy == f"step-{step}" and Ages(step, 1, max_staleness).of(call) == 0
        sampler.pause()
        with torch.no_grad():
            (named,) = policy.logprobs([call])
        assert drawn.logprobs == pytest.approx(named.tolist(), abs=1e-4), f"turn {step}"
        ids = [*ids, *drawn.completion_ids, *prompt(f"turn {step}", 10)]
    loop.run(sampler.close())
    loop.close()
