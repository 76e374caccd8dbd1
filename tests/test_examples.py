"""The loops in examples/ learn, and stay short enough to be read."""

import runpy
import shutil
from pathlib import Path

import pytest

from bough.config.run_folder import MetricsFile
from bough.methods.grpo import GRPOConfig, train_grpo
from tests.blocks import ROOT, shorten

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(("name", "longest"), [("grpo_loop.py", 150), ("dpo_loop.py", 100), ("openai_agent.py", 30)])
def test_it_is_short(name: str, longest: int):
    assert len((EXAMPLES / name).read_text().splitlines()) <= longest


def test_the_grpo_loop_raises_the_reward(monkeypatch: pytest.MonkeyPatch):
    main = runpy.run_path(str(EXAMPLES / "grpo_loop.py"))["main"]
    monkeypatch.setitem(main.__globals__, "STEPS", 6)
    rewards = main("tiny")
    assert sum(rewards[-2:]) > 1.5 * sum(rewards[:2]), rewards


def test_the_dpo_loop_learns_the_preferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pairs = Path(shutil.copy(EXAMPLES / "household-pairs.jsonl", tmp_path))
    shorten(pairs, 4)  # two batches in each epoch, of the shortest episodes
    main = runpy.run_path(str(EXAMPLES / "dpo_loop.py"))["main"]
    monkeypatch.setitem(main.__globals__, "PAIRS", pairs)
    accuracies = main("tiny")
    assert accuracies[-1] > 0.9 > accuracies[0], accuracies


def test_an_agent_on_the_openai_client_gets_better(tmp_path: Path):
    config = GRPOConfig(
        model="tiny", agent=f"{EXAMPLES / 'openai_agent.py'}:play", output_dir=tmp_path, max_steps=5, batch_size=2,
        group_size=8, max_new_tokens=6, temperature=0.4, learning_rate=2e-2, lr_scheduler="constant", warmup_ratio=0.0,
        logging_steps=1, watch=False, eval_every=4, eval_tasks=8, eval_temperature=0.4,
    )  # fmt: skip
    train_grpo(config)
    lines = list(MetricsFile.read(tmp_path / "metrics.jsonl"))
    before, after = (line["eval_success"] for line in lines if "eval_success" in line)
    assert after >= before + 0.3, [line["reward"] for line in lines]
    assert lines[-1]["reward"] > 1.3 * lines[0]["reward"], [line["reward"] for line in lines]
