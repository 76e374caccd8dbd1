import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bough.policy import head as divergence_file
from bough.policy.adapters import Lora, add_actor
from bough.policy.head import Head, Teacher, diverge, jensen_shannon, predict
from bough.policy.policy import Policy
from tests.policy.families import make
from tests.policy.test_policy import EPISODE, distance

M, D, E, V = 300, 8, 6, 50


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(divergence_file, "CHUNK", 128 * V)
    torch.set_num_threads(1)


def logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_divergences_that_can_be_checked_by_hand():
    student, teacher = logs([0.5, 0.5]), logs([0.25, 0.75])
    reverse, forward = math.log(4 / 3) / 2, math.log(27 / 16) / 4
    assert jensen_shannon(student, teacher, 1.0).item() == pytest.approx(reverse)  # .5 log(.5/.25) + .5 log(.5/.75)
    assert jensen_shannon(student, teacher, 0.0).item() == pytest.approx(forward)  # .25 log(.5) + .75 log(1.5)
    # The mixture at 1/2 is (3/8, 5/8).
    half = (math.log(16 / 15) / 2 + (math.log(2 / 3) + 3 * math.log(6 / 5)) / 4) / 2
    assert jensen_shannon(student, teacher, 0.5).item() == pytest.approx(half)
    assert jensen_shannon(student, student, 0.3).item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_it_is_what_kl_div_gives_as_trl_calls_it(beta: float):
    torch.manual_seed(0)
    student, teacher = (torch.log_softmax(3 * torch.randn(7, V), -1) for _ in range(2))

    def kl(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.kl_div(input, target, reduction="none", log_target=True).sum(-1)

    mixed = torch.log((1 - beta) * student.exp() + beta * teacher.exp())
    between = beta * kl(mixed, teacher) + (1 - beta) * kl(mixed, student)
    expected = {0.0: kl(student, teacher), 1.0: kl(teacher, student)}.get(beta, between)
    assert jensen_shannon(student, teacher, beta).tolist() == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("beta", "temperature", "more"), [(1.0, 1.0, 0), (0.0, 0.7, 3), (0.4, 1.5, -3)])
def test_chunks_change_neither_values_nor_gradients(trained: bool, beta: float, temperature: float, more: int):
    """`more` are ids that the teacher's vocabulary is padded with, or lacks."""
    torch.manual_seed(0)
    layer, other = nn.Linear(D, V), nn.Linear(E, V + more)
    layer.requires_grad_(trained)
    hidden, wanted = torch.randn(M, D, requires_grad=True), torch.randn(M, E)
    targets, slopes = torch.randint(0, V - 3, (M,)), torch.randn(M)
    head, teacher = Head(layer, V, temperature=temperature), Head(other, V + more, temperature=temperature)
    *found, divergences = diverge(hidden, targets, head, wanted, teacher, beta)
    (divergences * slopes).sum().backward()
    gradients = [hidden.grad.clone(), layer.weight.grad.clone() if trained else torch.zeros(1)]
    hidden.grad = layer.weight.grad = None
    size = min(V, V + more)
    student_MV = torch.log_softmax(layer(hidden)[:, :size] / temperature, -1)
    teacher_MV = torch.log_softmax(other(wanted)[:, :size] / temperature, -1).detach()
    expected = jensen_shannon(student_MV, teacher_MV, beta)
    (expected * slopes).sum().backward()
    assert torch.allclose(divergences, expected, atol=1e-5)
    assert torch.allclose(gradients[0], hidden.grad, atol=1e-5)
    if trained:
        assert torch.allclose(gradients[1], layer.weight.grad, atol=1e-4)
    if more >= 0:
        facts = predict(hidden, targets, head)
        assert all(torch.allclose(*both, atol=1e-5) for both in zip(found[:2], facts[:2], strict=True))
        assert found[2].tolist() == facts.greedy_M.tolist()
    assert not found[0].requires_grad


def measured(policy: Policy, *, share: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The divergences of an episode's tokens, call by call, and a gradient of them."""
    policy.zero_grad()
    by_call = {}
    for row in policy.rows(EPISODE, share=share):
        by_call |= dict(zip(row.calls, policy(row).trained, strict=True))
    values = torch.cat([by_call[c] for c in sorted(by_call)])
    (values * torch.linspace(0.5, 1.5, len(values))).sum().backward()
    return values.detach(), torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("adapted", [True, False])
def test_a_teacher_reads_the_students_tree(adapted: bool):
    torch.manual_seed(0)
    model = make("llama")
    policy = Policy(add_actor(model, Lora(r=4)) if adapted else model)
    torch.manual_seed(1)
    other = Policy(make("qwen3")).eval()
    policy.teacher = Teacher(other, 0.5)
    shared, alone = measured(policy, share=True), measured(policy, share=False)
    assert distance(shared[0], alone[0]) < 1e-5 and distance(shared[1], alone[1]) < 1e-5
    assert shared[0].min() > 0 and all(weights.grad is None for weights in other.parameters())


def test_a_teacher_is_no_part_of_the_policy():
    policy = Policy(make("llama"))
    names, counted = set(policy.state_dict()), len(list(policy.parameters()))
    before = policy.logprobs(EPISODE)
    policy.teacher = Teacher(Policy(make("llama")), 1.0)
    assert set(policy.state_dict()) == names and len(list(policy.parameters())) == counted
    policy.teacher = replace(policy.teacher, policy=None)  # type: ignore[arg-type]  # asked, it would fail
    assert all(torch.equal(a, b) for a, b in zip(before, policy.logprobs(EPISODE), strict=True))
    assert policy.teacher is not None
