"""The loops in examples/ learn, and stay short enough to be read."""

import runpy

import pytest

from tests.blocks import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(("name", "longest"), [("grpo_loop.py", 150), ("dpo_loop.py", 100)])
def test_it_is_short(name: str, longest: int):
    assert len((EXAMPLES / name).read_text().splitlines()) <= longest


def test_the_grpo_loop_raises_the_reward():
    rewards = runpy.run_path(str(EXAMPLES / "grpo_loop.py"))["main"]("tiny")
    assert sum(rewards[-2:]) > 1.5 * sum(rewards[:2]), rewards


def test_the_dpo_loop_learns_the_preferences():
    accuracies = runpy.run_path(str(EXAMPLES / "dpo_loop.py"))["main"]("tiny")
    assert accuracies[-1] > 0.9 > accuracies[0], accuracies
