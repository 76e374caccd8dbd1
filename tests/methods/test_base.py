import json
from pathlib import Path
from typing import Any

import pytest

from bough.methods.base import training_command
from bough.methods.grpo import GRPOConfig
from bough.training.checkpoint import Counters
from bough.training.run import Trained


def closing_lines(folder: Path, lines: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counters = Counters(step=lines[-1]["step"], tokens_trained=1200, tokens_computed=100, tokens_raw=250)
    command = training_command(GRPOConfig, train=lambda _: Trained(folder / "final", counters, []), reads="groups")
    assert command.run(GRPOConfig(train_file="groups.jsonl")) == 0
    return capsys.readouterr().out.splitlines()


def test_grpo_says_how_reward_and_success_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        {"step": 1, "loss": 0.0, "reward": 0.25, "success": 0.125, "eval_success": 0.5},
        {"step": 2, "loss": -0.5, "reward": 0.5},
        {"step": 3, "loss": -0.25, "reward": 0.75, "success": 0.875},
        {"step": 4, "loss": 0.125, "reward": None},
    ]
    shown = closing_lines(tmp_path, lines, capsys)
    assert shown[:5] == [
        "loss 0 → 0.125 in 4 steps",
        "reward 0.25 → 0.75",
        "success 0.125 → 0.875",
        "held-out success 0.5 → 0.5",
        "1,200 tokens trained; 100 computed, 2.5× fewer than without sharing",
    ]


def test_the_loss_on_held_out_data_is_said_first_last_and_lowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        {"step": 1, "loss": 0.75, "accuracy": 0.5},
        {"step": 1, "eval_loss": 0.5, "eval_accuracy": 0.25},
        {"step": 2, "loss": 0.25, "accuracy": 1.0},
        {"step": 2, "eval_loss": 0.125, "eval_accuracy": 1.0},
        {"step": 2, "eval_loss": 0.25, "eval_accuracy": 0.75},
    ]
    shown = closing_lines(tmp_path, lines, capsys)
    assert shown[1:4] == [
        "accuracy 0.5 → 1",
        "held-out loss 0.5 → 0.25 (lowest 0.125)",
        "held-out accuracy 0.25 → 0.75",
    ]


def batch_line(step: int, seconds: float, **more: float) -> dict[str, Any]:
    return {"step": step, "loss": 0.5, "batch_seconds": seconds, **more}


def test_an_online_run_says_where_its_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fast = {"sampling_share": 0.5, "training_share": 0.25, "idle_share": 0.25, "sampled_tokens_per_s": 4000.0}
    slow = {"sampling_share": 0.9, "training_share": 0.05, "idle_share": 0.09, "sampled_tokens_per_s": 2000.0}
    slow["overlap_share"] = 0.04
    ages = {"staleness_mean": 0.5, "staleness_max": 1, "calls_stale": 7, "calls_off_policy": 600}
    lines = [
        batch_line(1, 1.0, episodes_in_flight=8.0, staleness_mean=0.0, staleness_max=0, **fast),
        {"step": 2, "loss": 0.5},  # a second update on the same batch
        batch_line(3, 3.0, episodes_in_flight=16.0, **slow, **ages),
    ]
    shown = closing_lines(tmp_path, lines, capsys)
    assert shown[1:5] == [
        "80% of the time sampling, 10% training, 3% both, 13% idle",
        "2,500 tokens/s sampled over the whole run, 14 episodes in flight",
        "staleness 0.25 batches on average, 1 at most; 7 calls dropped as too old",
        "600 calls sampled with top_p, top_k or min_p: slightly off-policy",
    ]
