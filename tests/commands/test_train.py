import json
from pathlib import Path
from typing import Any

import pytest

from bough import train
from bough.commands import train as command
from bough.methods.grpo import GRPOConfig
from bough.training.counters import Counters
from bough.training.run import Trained


def closing_lines(
    folder: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counters = Counters(step=lines[-1]["step"], tokens_trained=1200, tokens_computed=100, tokens_raw=250)
    monkeypatch.setattr(train, "grpo", lambda _: Trained(folder / "final", counters, []))
    assert command.grpo(GRPOConfig(train_file="groups.jsonl")) == 0
    return capsys.readouterr().out.splitlines()


def test_grpo_says_how_reward_and_success_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = [
        {"step": 1, "loss": 0.0, "reward": 0.25, "success": 0.125, "eval_success": 0.5},
        {"step": 2, "loss": -0.5, "reward": 0.5},
        {"step": 3, "loss": -0.25, "reward": 0.75, "success": 0.875},
        {"step": 4, "loss": 0.125, "reward": None},
    ]
    shown = closing_lines(tmp_path, lines, monkeypatch, capsys)
    assert shown[:5] == [
        "loss 0 → 0.125 in 4 steps",
        "reward 0.25 → 0.75",
        "success 0.125 → 0.875",
        "held-out success 0.5 → 0.5",
        "1,200 tokens trained; 100 computed, 2.5× fewer than without sharing",
    ]


def test_a_run_without_rewards_says_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shown = closing_lines(tmp_path, [{"step": 1, "loss": 0.5}], monkeypatch, capsys)
    assert shown[0] == "loss 0.5 → 0.5 in 1 steps" and "tokens trained" in shown[1]


def test_the_loss_on_held_out_data_is_said_first_last_and_lowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = [
        {"step": 1, "loss": 0.75, "accuracy": 0.5},
        {"step": 1, "eval_loss": 0.5, "eval_accuracy": 0.25},
        {"step": 2, "loss": 0.25, "accuracy": 1.0},
        {"step": 2, "eval_loss": 0.125, "eval_accuracy": 1.0},
        {"step": 2, "eval_loss": 0.25, "eval_accuracy": 0.75},
    ]
    shown = closing_lines(tmp_path, lines, monkeypatch, capsys)
    assert shown[1:4] == [
        "accuracy 0.5 → 1",
        "held-out loss 0.5 → 0.25 (lowest 0.125)",
        "held-out accuracy 0.25 → 0.75",
    ]
