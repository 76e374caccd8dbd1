from pathlib import Path
from typing import Any

import pytest
import torch

from bough.chat.builder import CallBuilder
from bough.chat.template import load_template
from bough.errors import InputError
from bough.methods.distill import Distill, DistillConfig, divergence_loss
from bough.training.method import GroupExample
from bough.types import Call, Group, Message, Pair, Task, Trajectory, Turn


def config(**more: Any) -> DistillConfig:
    return DistillConfig(**{"model": "tiny", "teacher": "tiny", "train_file": Path("x")} | more)


def test_the_loss_is_the_mean_over_the_whole_steps_tokens():
    divergences = torch.tensor([1.0, 0.5, 0.0], requires_grad=True)
    loss, metrics = divergence_loss(divergences, denominator=6)
    loss.backward()
    assert loss.item() == 0.25 and divergences.grad.tolist() == pytest.approx([1 / 6] * 3)
    assert metrics["divergence"].value == 0.5 and not metrics["divergence"].total.requires_grad


def test_the_loss_takes_the_divergences_of_the_teacher():
    parts = [GroupExample([Call(prompt_ids=[1], completion_ids=[2])])] * 2
    found = [[torch.tensor([2.0])], [torch.tensor([1.0])]]
    assert Distill(config()).loss(parts, found, None, 4.0).value.item() == 3.0 / 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"train_file": None}, "give one of them"),
        ({"environment": "household"}, "give one of them"),
        ({"environment": "household", "train_file": None}, "max_steps is required"),
        ({"environment": "x", "train_file": None, "max_steps": 1, "curriculum": True}, "it is for data on file"),
        ({"environment": "x", "train_file": None, "max_steps": 1, "eval_every": 1, "task_file": "t"}, "eval_task_file"),
        ({"teacher": "http://127.0.0.1:1/v1"}, "a teacher is loaded in this process"),
        ({"beta": 1.1}, "beta"),
    ],
)
def test_settings_that_contradict_each_other_are_named(given: dict[str, Any], problem: str):
    with pytest.raises(InputError) as error:
        config(**given)
    assert problem in " ".join(error.value.problems)


def test_episodes_and_groups_are_examples_and_pairs_are_not():
    turns = [Turn(reply=Message(role="assistant", content="yes")), Turn(reply=Message(role="assistant", content="no"))]
    one = Trajectory(id="a", task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=turns[:1])
    two = one.model_copy(update={"id": "b", "turns": turns[1:]})
    method, builder = Distill(config()), CallBuilder(load_template("tiny"))
    single, both = method.examples([one, Group(task=one.task, attempts=[one, two])], builder).examples
    assert [len(single.calls), len(both.calls)] == [1, 2] and len(method.parts(both)) == 2
    pair = Pair(task=one.task, start=one.start, chosen=turns[:1], rejected=turns[1:])
    with pytest.raises(InputError, match="distillation learns from trajectories or groups"):
        method.examples([pair], builder)
    assert method.amount(both) == both.num_trained == sum(len(call.completion_ids) for call in both.calls)
