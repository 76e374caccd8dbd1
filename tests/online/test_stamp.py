from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.parts import leaves
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig
from bough.online.files import FREE, Stamp, Stamper, settings_digest


def config(**more: Any) -> GRPOConfig:
    return GRPOConfig(**{"environment": "a", "max_steps": 3, "model": "tiny", **more})


def test_a_stamp_changes_with_trained_and_with_frozen_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    # Half of the bits rise by what the other half falls when something is added: their sum does not tell.
    nn.init.constant_(model[1].weight, 1.5)
    model[1].weight.data[0] *= -1
    model[0].requires_grad_(False)
    first = Stamper(config(), model).stamp()
    stamper = Stamper(config(), model)
    assert stamper.stamp() == first and stamper.stamp().number == first.number
    with torch.no_grad():
        model[1].weight.add_(1e-6)
    trained = stamper.stamp()
    assert trained.settings == first.settings and trained.weights != first.weights
    assert trained.number != first.number
    with torch.no_grad():
        model[0].weight.add_(1e-6)
    assert Stamper(config(), model).stamp().weights not in (first.weights, trained.weights)


def test_the_number_of_a_stamp_fits_json_and_depends_on_both():
    numbers = {Stamp(s, w).number for s in ("a", "b") for w in ("c", "d")}
    assert len(numbers) == 4 and all(0 <= number < 2**53 for number in numbers)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.7}, {"group_size": 4}, {"max_new_tokens": 9}, {"options": {"level": "2"}}, {"seed": 1},
        {"rewards": {"outcome": 1}}, {"advantage": "turn"}, {"max_length": 128}, {"eval_every": 1}, {"model": "other"},
        {"max_staleness": 1},
    ],
)  # fmt: skip
def test_settings_that_matter_for_a_batch_change_its_stamp(change: dict[str, Any]):
    assert settings_digest(config(**change)) != settings_digest(config())


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1.0}, {"max_steps": 9}, {"output_dir": "b"}, {"resume": True}, {"watch": False},
        {"token_budget": 512}, {"clip_low": 0.1}, {"concurrency": 2}, {"updates": 3}, {"save_steps": 7},
    ],
)  # fmt: skip
def test_settings_that_decide_only_what_is_learnt_do_not(change: dict[str, Any]):
    assert settings_digest(config(**change)) == settings_digest(config())


def test_free_settings_are_settings():
    assert (leaves(GRPOConfig) | leaves(DistillConfig)).keys() >= FREE


def test_of_a_file_what_is_in_it_counts(tmp_path: Path):
    one, same, other = (tmp_path / name for name in ("one.jsonl", "same.jsonl", "other.jsonl"))
    for path, text in ((one, "a"), (same, "a"), (other, "b")):
        path.write_text(text)
    first, second, third = (settings_digest(config(task_file=path)) for path in (one, same, other))
    assert first == second != third
