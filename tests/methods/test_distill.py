import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.chat.template import CallBuilder, load_template
from bough.errors import InputError
from bough.methods.distill import Distill, DistillConfig, divergence_loss, sampled_reverse_kl
from bough.training.method import GroupExample
from bough.types import Call, Group, Message, Pair, Task, Trajectory, Turn

SERVER = "http://127.0.0.1:1/v1"
# What a server cannot score.
BEYOND: list[dict[str, Any]] = [{"beta": 0.5}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}]


def config(**more: Any) -> DistillConfig:
    return DistillConfig(**{"model": "tiny", "teacher": "tiny", "train_file": Path("x")} | more)


def test_the_loss_is_the_mean_over_the_whole_steps_tokens():
    divergences = torch.tensor([1.0, 0.5, 0.0], requires_grad=True)
    loss, metrics = divergence_loss(divergences, denominator=6)
    loss.backward()
    assert loss.item() == 0.25 and divergences.grad.tolist() == pytest.approx([1 / 6] * 3)
    assert metrics["divergence"].value == 0.5 and not metrics["divergence"].total.requires_grad


@pytest.mark.parametrize("updated", [False, True], ids=["first update", "later update"])
def test_the_estimate_is_unbiased_on_replies_of_an_older_policy(updated: bool):
    """The mean over all replies of two tokens, by how probable the older policy made them, is the exact gradient."""
    torch.manual_seed(0)
    size, method = 4, Distill(config(teacher=SERVER))
    # Logits of the first token, then of the second after each first one.
    logits = torch.randn(1 + size, size, requires_grad=True)
    older, before, teacher = (torch.log_softmax(torch.randn(1 + size, size), -1) for _ in range(3))
    student = torch.log_softmax(logits, -1)
    kl = (student.exp() * (student - teacher)).sum(-1)
    states = torch.cat([torch.ones(1), older[0].exp()])  # how often the older policy comes to each history
    exact_value = (states * kl).sum() / 2
    (exact,) = torch.autograd.grad(exact_value, logits)
    estimate, value = torch.zeros_like(logits), 0.0
    for first, second in itertools.product(range(size), repeat=2):
        tokens = torch.tensor([0, 1 + first]), torch.tensor([first, second])
        call = Call(prompt_ids=[1], completion_ids=[first, second], logprobs=older[tokens].tolist())
        part = GroupExample([call], old_logprobs=(before[tokens],) if updated else ())
        loss, metrics = method.loss([part], [[torch.log_softmax(logits, -1)[tokens]]], [[teacher[tokens]]], 2.0)
        (slope,) = torch.autograd.grad(loss, logits)
        chance = older[tokens].sum().exp().item()
        estimate += chance * slope
        value += chance * metrics["divergence"].value
    assert torch.allclose(estimate, exact, atol=1e-6)
    assert value == pytest.approx(exact_value.item(), rel=1e-5)


def test_after_an_update_the_estimate_is_weighted_by_the_ratio():
    now, old = (torch.tensor(values, requires_grad=True) for values in ([-1.0, -2.0], [-1.0, -3.0]))
    found = sampled_reverse_kl(now, old, torch.tensor([-2.0, -2.5]))
    found.sum().backward()
    assert old.grad is None
    assert found.tolist() == now.grad.tolist() == pytest.approx([1.0, torch.e * 0.5])


def test_the_loss_takes_divergences_of_a_local_teacher_and_the_log_probabilities_of_a_server():
    call = Call(prompt_ids=[1], completion_ids=[2])
    before = GroupExample([call], old_logprobs=(torch.tensor([-3.0]),))
    parts, now = [before, GroupExample([call])], [[torch.tensor([-2.0])], [torch.tensor([-1.0], requires_grad=True)]]
    method = Distill(config())
    assert method.loss(parts, now, None, 4.0).value.item() == -3.0 / 4
    teacher = [[torch.tensor([-2.5])], [torch.tensor([-2.0])]]
    loss, metrics = method.loss(parts, now, teacher, 4.0)
    # The first is weighted by its ratio, e; the second has not been updated yet.
    assert loss.item() == pytest.approx((torch.e * 0.5 + 1.0) / 4)
    assert metrics["divergence"].value == pytest.approx((torch.e * 0.5 + 1.0) / 2)
    loss.backward()
    assert now[1][0].grad.tolist() == [0.25]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"train_file": None}, "give one of them"),
        ({"environment": "household"}, "give one of them"),
        ({"environment": "household", "train_file": None}, "max_steps is required"),
        ({"environment": "x", "train_file": None, "max_steps": 1, "curriculum": True}, "it is for data on file"),
        ({"environment": "x", "train_file": None, "max_steps": 1, "eval_every": 1, "task_file": "t"}, "eval_task_file"),
        *(({"teacher": SERVER, **more}, "a server scores the sampled tokens only") for more in BEYOND),
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


@pytest.mark.parametrize("temperature", [0.5, 0.0])
def test_a_server_cannot_score_replies_that_were_sampled_at_another_temperature(temperature: float):
    at = temperature or 1.0  # log-probabilities of greedy replies are those at 1
    reply = Call(prompt_ids=[1], completion_ids=[2], logprobs=[-1.0], logprobs_temperature=at, temperature=temperature)
    turn = Turn(reply=Message(role="assistant", content="yes"), call=reply)
    one = Trajectory(id="a", task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=[turn])
    builder = CallBuilder(load_template("tiny"))
    assert Distill(config()).examples([one], builder).temperatures == {temperature}
    with pytest.raises(InputError, match=f"replies were sampled at temperature {temperature:g}, but"):
        Distill(config(teacher=SERVER)).examples([one], builder)
