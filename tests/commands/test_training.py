"""Training on records in memory, on files and in an environment class."""

import asyncio
import gc
from pathlib import Path

import pytest
import torch

import bough
from tests.blocks import ROOT
from tests.commands.letters import WriteLetter, length

PAIRS = ROOT / "examples" / "household-pairs.jsonl"
SHORT = {"max_steps": 2, "batch_size": 2, "max_length": 256}


@pytest.fixture(scope="module")
def expert() -> list[bough.Trajectory]:
    return bough.collect("expert", WriteLetter, tasks=4)


def test_records_in_memory_train_to_the_same_weights_as_their_file(expert: list[bough.Trajectory], tmp_path: Path):
    memory = bough.sft("tiny", expert, eval_file=expert, **SHORT)
    file = bough.write(expert, tmp_path / "expert.jsonl")
    copy = bough.write(expert, tmp_path / "copy.jsonl")
    disk = bough.sft("tiny", file, eval_file=copy, output_dir=tmp_path / "run", **SHORT)
    weights = [(trained.path / "adapter_model.safetensors").read_bytes() for trained in (memory, disk)]
    assert weights[0] == weights[1]
    assert [line.get("loss") for line in memory.metrics] == [line.get("loss") for line in disk.metrics]
    assert disk.path == tmp_path / "run" / "final" and disk.ledgers[0]["kept"] == 4
    assert "tiny+sft: 2 steps, loss" in repr(memory)


def test_without_output_dir_the_weights_go_with_the_object(expert: list[bough.Trajectory], tmp_path: Path):
    trained = bough.sft("tiny", expert, **SHORT)
    path, kept = trained.path, trained.save(tmp_path / "kept")
    assert path.is_dir()
    del trained
    gc.collect()
    assert not path.parent.exists() and (kept / "adapter_config.json").is_file()


def test_a_trained_model_is_where_the_next_stage_starts(expert: list[bough.Trajectory]):
    first = bough.sft("tiny", expert, **SHORT)
    second = bough.dpo(first, PAIRS, **SHORT)
    assert second.name == "tiny+sft+dpo" and {"accuracy", "loss"} <= second.metrics[-1].keys()
    del first
    gc.collect()
    found = bough.evaluate(second, eval_file=list(bough.read(PAIRS))[:2])
    assert isinstance(found, bough.HeldOutMeasures)
    assert "preference_accuracy_over_reference" in found  # what it started from is still there


def test_grpo_learns_from_groups_with_a_reward_of_ones_own():
    played = bough.collect("tiny", WriteLetter, tasks=2, attempts=4, max_new_tokens=6)
    trained = bough.grpo("tiny", bough.groups(played, rewards=[length]), max_steps=1)
    assert trained.report["step"] == 1 and trained.ledgers[0]["kept"] == 2


def test_grpo_plays_in_a_class_inside_a_running_loop():
    async def notebook() -> bough.TrainedModel:
        return bough.grpo(
            "tiny", environment=WriteLetter, rewards={length: 0.1, "outcome": 1.0},
            max_steps=1, batch_size=2, group_size=4, max_new_tokens=6, watch=False,
        )  # fmt: skip

    trained = asyncio.run(notebook())
    assert trained.metrics[0]["reward/length"] > 0 and trained.metrics[0]["episodes"] >= 8


def test_a_student_learns_from_recorded_episodes_what_a_loaded_teacher_would_say():
    played = bough.collect("tiny", WriteLetter, tasks=2, attempts=2, max_new_tokens=6)
    teacher = bough.load("tiny", lora=bough.Lora(r=4), seed=3)
    with torch.no_grad():
        for weights in teacher.policy.parameters():
            if weights.requires_grad:
                weights += 0.1
    trained = bough.distill("tiny", teacher, played, beta=0.5, max_steps=1, batch_size=4)
    assert trained.metrics[0]["divergence"] > 0 and trained.ledgers[0]["kept"] == 4


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
