"""The local engine beside training: when both compute at the same time, and what memory it leaves on a GPU."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.event_loop import BackgroundLoop
from bough.methods.grpo import GRPOConfig
from bough.online.samplers import LocalSampler, Meter, MeteredEngine, _collides
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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_every_second_is_sampling_training_or_idle(clock: Clock):
    meter = Meter(clock)
    clock.now += 1  # idle
    meter.episodes(2)
    meter.request()
    clock.now += 2
    meter.request()
    clock.now += 1
    meter.answer(10)
    clock.now += 1
    meter.answer(6)
    clock.now += 2  # idle
    meter.request()
    meter.training(True)
    clock.now += 3  # a request that waits is not sampled
    values = meter.lap()
    assert values == {
        "batch_seconds": 10.0,
        "sampled_tokens_per_s": 1.6,
        "sampling_share": 0.4,
        "training_share": 0.3,
        "overlap_share": 0.0,
        "idle_share": pytest.approx(0.3),
        "episodes_in_flight": 1.8,
    }


def test_sampling_while_the_policy_trains_counts_as_both(clock: Clock):
    meter = Meter(clock, overlaps=True)
    meter.request()
    clock.now += 2  # sampling
    meter.training(True)
    clock.now += 3  # both
    meter.answer(6)
    clock.now += 1  # training
    meter.training(False)
    clock.now += 4  # idle
    values = meter.lap()
    shares = [values[f"{what}_share"] for what in ("sampling", "training", "overlap", "idle")]
    assert shares == [0.5, 0.4, 0.3, pytest.approx(0.4)]


class Engine:
    """Answers three tokens, or fails."""

    policy = "step-3"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.released = clock, list[str]()

    async def generate(
        self, episode: str, prompt_ids: list[int], *, sampling: SamplingConfig, seed: int, stop_ids: list[int]
    ) -> Generated:
        self.clock.now += 2
        if episode == "bad":
            raise EngineError("no")
        return Generated([1, 2, 3], [0.0] * 3, "stop")

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def close(self) -> None:
        return


def test_tokens_and_time_of_an_engine_are_seen_also_where_it_fails(clock: Clock):
    meter, engine = Meter(clock), Engine(clock)
    metered = MeteredEngine(engine, meter)
    for episode in ("good", "bad"):
        asked = metered.generate(episode, [1], sampling=SamplingConfig(), seed=1, stop_ids=[])
        if episode == "bad":
            with pytest.raises(EngineError):
                asyncio.run(asked)
        else:
            assert asyncio.run(asked).completion_ids == [1, 2, 3]
    clock.now += 4
    values = meter.lap()
    assert (values["sampled_tokens_per_s"], values["sampling_share"]) == (3 / 8, 0.5)
    metered.release("good")
    assert metered.policy == "step-3" and engine.released == ["good"]
