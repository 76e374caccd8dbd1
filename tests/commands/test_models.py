"""Models in memory."""

from pathlib import Path

import pytest
import torch

import bough
from tests.blocks import ROOT

PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_the_calls_of_a_pair_are_those_of_its_sides():
    model = bough.load("tiny")
    pair = next(iter(bough.read(PAIRS)))
    assert isinstance(pair, bough.Pair)
    [[chosen], [rejected]] = model.calls(pair)
    assert chosen.prompt_ids == rejected.prompt_ids and chosen.completion_ids != rejected.completion_ids
    assert model.tokenizer.decode(chosen.completion_ids).startswith(pair.chosen[0].reply.content)


def test_a_turn_that_cannot_be_trained_is_an_error():
    model = bough.load("tiny")
    start = [bough.Message(role="user", content="word " * 5000)]
    turn = bough.Turn(reply=bough.Message(role="assistant", content="yes"))
    with pytest.raises(bough.InputError, match="turn 1 cannot be trained"):
        model.calls(bough.Trajectory(id="a", task=bough.Task(id="a"), start=start, turns=[turn]))


def test_a_new_adapter_is_the_same_for_the_same_seed_and_is_saved_and_loaded(tmp_path: Path):
    first, second, other = (bough.load("tiny", lora=bough.Lora(r=4), seed=seed) for seed in (1, 1, 2))
    weights = [model.policy.weights() for model in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    again = bough.load(first.save(tmp_path / "adapter")).policy.weights()
    assert all(torch.equal(weights[0][name], again[name]) for name in weights[0])
    assert "tiny on cpu" in repr(first).replace("cuda:0", "cpu")


def test_what_is_no_model_is_refused():
    with pytest.raises(bough.InputError, match="not a int"):
        bough.load(3)  # type: ignore[arg-type]
