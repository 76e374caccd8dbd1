from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bough.config.parts import leaves
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig
from bough.online.stamp import FREE, HASHED_WHOLE, Stamp, Stamper, settings_digest, weights_digest


def config(**more: Any) -> GRPOConfig:
    return GRPOConfig(**{"environment": "a", "max_steps": 3, "model": "tiny", **more})


def of(weight: Tensor, name: str = "a") -> str:
    return weights_digest([(name, weight)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("size", [1, 1023, 5000, HASHED_WHOLE + 5000])
def test_one_bit_of_one_weight_is_another_digest(dtype: torch.dtype, size: int):
    weight = torch.arange(size).to(dtype)
    for place in {0, size // 2, size - 1}:
        other = weight.clone()
        other.view(torch.uint8)[place * weight.element_size()] ^= 1
        assert of(other) != of(weight)
    assert of(weight.clone()) == of(weight)


def test_the_same_numbers_in_another_shape_place_or_type_are_other_weights():
    weight = torch.arange(6.0)
    digests = {of(weight), of(weight.view(2, 3)), of(weight, "b"), of(weight.double()), of(torch.arange(7.0)[:6] + 1)}
    assert len(digests) == 5
    blocks = torch.arange(2.0 * HASHED_WHOLE)
    assert of(blocks) != of(blocks.roll(1024))


def test_a_view_has_the_digest_of_its_own_weights():
    weight = torch.arange(12.0).view(3, 4)
    assert of(weight.T) == of(weight.T.contiguous()) != of(weight)


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
