"""Online GRPO whose attempts at a task are sampled at several temperatures."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.methods.grpo import GRPOConfig, train_grpo
from bough.policy.policy import Policy
from bough.types import Call
from tests.online.test_online import batch, metrics, settings
from tests.online.test_vllm_sampler import StandIn, small, started

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
