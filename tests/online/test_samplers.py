"""The local engine beside training: when both compute at the same time, and what memory it leaves on a GPU."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.event_loop import BackgroundLoop
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.samplers import LocalSampler, Meter, MeteredEngine, _collides
from bough.online.schedule import Ages
from bough.policy.policy import Policy
from bough.training.plan import training_bytes
from bough.types import Call
from tests.engines.local.playing import prompt
from tests.online.test_online import batch, metrics, settings
from tests.online.test_vllm import StandIn, small, started

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


TEMPERATURES = [0.5, 1.0, 2.0]

__all__ = ["started"]  # a fixture


def several(folder: Path, **more: Any) -> GRPOConfig:
    return settings(folder, **{"temperatures": TEMPERATURES, "max_steps": 2, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches of one update each."""
    folder = tmp_path_factory.mktemp("several")
    train_grpo(several(folder, eval_every=2, eval_tasks=2, save_steps=1))
    return folder


def calls(folder: Path, number: int = 0) -> list[Call]:
    return [turn.call for group in batch(folder, number) for a in group.attempts for turn in a.turns if turn.call]


def check_on_policy(line: dict[str, Any]) -> None:
    assert line["logprob_gap_max"] < 1e-4 and line["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert line["importance_weight"] == pytest.approx(1, abs=1e-4)


def check_recorded(sampled: list[Call]) -> None:
    """What was recorded are the start policy's log-probabilities at each call's own temperature, by the definition."""
    model = Policy.load("tiny").eval().base
    with torch.no_grad():
        for call in sampled:
            assert call.temperature == call.logprobs_temperature is not None
            logits = model(input_ids=torch.tensor([call.prompt_ids + call.completion_ids])).logits[0]
            expected = (logits[len(call.prompt_ids) - 1 : -1] / call.temperature).log_softmax(-1)
            at_tokens = expected[torch.arange(len(call.completion_ids)), call.completion_ids]
            assert torch.allclose(at_tokens, torch.tensor(call.logprobs), atol=1e-4)


def test_the_attempts_of_a_group_are_dealt_over_the_temperatures(run: Path):
    groups = [group for number in range(2) for group in batch(run, number)]
    dealt = [[turn.call.temperature for a in group.attempts for turn in a.turns if turn.call] for group in groups]
    assert dealt == [[0.5, 1, 2, 0.5], [1, 2, 0.5, 1], [2, 0.5, 1, 2], [0.5, 1, 2, 0.5]]
    assert set(Counter(heat for of_group in dealt for heat in of_group).values()) <= {5, 6}


def test_each_call_is_recorded_and_trained_at_its_own_temperature(run: Path):
    check_recorded(calls(run))
    for line in metrics(run):
        check_on_policy(line)
        assert line["ratio"] == pytest.approx(1, abs=1e-4)


def test_several_updates_start_at_a_ratio_of_one(tmp_path: Path):
    train_grpo(several(tmp_path, updates=2, kl_coef=0.1))
    first, second = metrics(tmp_path)
    check_on_policy(first)
    assert first["ratio"] == pytest.approx(1, abs=1e-4) and first["reference_kl"] == pytest.approx(0, abs=1e-6)
    assert second["approx_kl"] > 1e-9 and second["mismatch_kl"] == pytest.approx(0, abs=1e-6)


def test_a_run_that_resumes_samples_at_the_same_temperatures(run: Path, tmp_path: Path):
    finished = shutil.ignore_patterns("final", "ledger.json", "report.json", "step-00000002", "00001*")
    shutil.copytree(run, tmp_path, ignore=finished, dirs_exist_ok=True)
    train_grpo(several(tmp_path, eval_every=2, eval_tasks=2, resume=True))
    assert [call.completion_ids for call in calls(tmp_path, 1)] == [call.completion_ids for call in calls(run, 1)]
    assert [call.temperature for call in calls(tmp_path, 1)] == [call.temperature for call in calls(run, 1)]
    check_on_policy(metrics(tmp_path)[-1])


def test_batches_that_are_played_ahead_are_sampled_and_trained_at_several_temperatures(tmp_path: Path):
    train_grpo(several(tmp_path, max_staleness=1, learning_rate=1e-12))
    sampled = [call for number in range(2) for call in calls(tmp_path, number)]
    assert {call.temperature for call in sampled} == set(TEMPERATURES)
    check_recorded(sampled)
    for line in metrics(tmp_path):
        check_on_policy(line)


@pytest.mark.usefixtures("started")
def test_vllm_samples_at_several_temperatures(tmp_path: Path, started: list[StandIn]):
    train_grpo(small(tmp_path / "run", temperatures=[1.0, 1.5], max_steps=1))
    assert started[0].options["logprobs_mode"] == "processed_logprobs"
    assert {call.temperature for call in calls(tmp_path / "run")} == {1.0, 1.5}
    check_on_policy(metrics(tmp_path / "run")[0])


def test_groups_on_file_are_trained_at_their_temperatures(run: Path, tmp_path: Path):
    config = GRPOConfig(
        train_file=run / "rollouts/00000.jsonl", model="tiny", output_dir=tmp_path, temperatures=TEMPERATURES,
        max_steps=1, batch_size=2, logging_steps=1,
    )  # fmt: skip
    train_grpo(config)
    (line,) = metrics(tmp_path)
    assert line["mismatch_kl"] == pytest.approx(0, abs=1e-6) and line["importance_weight"] == pytest.approx(1, abs=1e-4)
