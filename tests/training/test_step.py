"""The gradient of a step is the same however its parts fall into rows."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bough.config.run_folder import MetricsFile
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.grpo import GRPO, GRPOConfig
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.reference import Reference
from bough.training.method import Example, GroupExample
from bough.training.plan import Batch
from bough.training.step import PackedBatch, Step, Updater
from bough.types import Call
from tests.training.test_loop import trainer

FILE = Path("a.jsonl")


def call(*ids: int, answer: int = 3) -> Call:
    return Call(prompt_ids=list(ids[:-answer]), completion_ids=list(ids[-answer:]))


HISTORY = tuple(range(10, 40))
CALLS = [call(*HISTORY[: 8 + 4 * i], 50 + i, 60, 2) for i in range(5)]
OTHERS = [call(*HISTORY[: 8 + 4 * i], 70 + i, 61, 62, 2, answer=4) for i in range(5)]


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    loaded = Policy.load("tiny", lora=Lora(r=4, dropout=0.2))
    for name, parameter in loaded.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return loaded.train()


def gradient(policy: Policy, method: object, parts: list[Example], budget: int) -> tuple[float, torch.Tensor]:
    policy.zero_grad()
    torch.manual_seed(7)
    policy.eval()  # dropout would differ between rows of different shape
    step = Step(policy, method, parts, budget=budget)  # type: ignore[arg-type]
    found = step.run(10.0, Reference(policy), backward=True)
    gradients = [p.grad.flatten() for p in policy.parameters() if p.requires_grad and p.grad is not None]
    return found.loss, torch.cat(gradients)


def pair(i: int) -> Preference:
    return Preference(calls=[CALLS[i], OTHERS[i]], num_chosen=1, reason="loop")


EPISODE_PAIR = Preference(calls=[*CALLS, *OTHERS], num_chosen=5)
DEMONSTRATION = Demonstration(calls=CALLS, weights=(1.0, 0.5, 2.0, 1.0, 0.25))
ATTEMPTS = GroupExample(
    calls=CALLS + OTHERS, advantages=(1.0,) * 5 + (-1.0,) * 5, weights=(1.0,) * 10, denominator=10.0
)

SFT_METHOD = SFT(SFTConfig(train_file=FILE))


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        (DPO(DPOConfig(train_file=FILE)), [pair(i) for i in range(5)]),
        (DPO(DPOConfig(train_file=FILE, beta=0.5, nll_alpha=1.0)), [EPISODE_PAIR, pair(2)]),
        (SFT_METHOD, SFT_METHOD.parts(DEMONSTRATION)),
        (GRPO(GRPOConfig(train_file=FILE)), GRPO(GRPOConfig(train_file=FILE)).parts(ATTEMPTS)),
    ],
    ids=["round pairs", "episode pair", "demonstration", "attempts"],
)
@pytest.mark.parametrize("budget", [16, 40, 60])
def test_rows_do_not_change_loss_or_gradient(policy: Policy, method: object, parts: list[Example], budget: int):
    loss, expected = gradient(policy, method, parts, 4096)
    split_loss, split = gradient(policy, method, parts, budget)
    assert split_loss == pytest.approx(loss, rel=1e-5)
    assert torch.linalg.norm(split - expected) <= 1e-5 * torch.linalg.norm(expected)


def test_a_part_larger_than_a_row_is_computed_with_the_same_dropout_twice(policy: Policy):
    """With dropout on, the loss of the first pass must be the loss whose gradient the second takes."""
    method = DPO(DPOConfig(train_file=FILE))
    torch.manual_seed(3)
    step = Step(policy, method, [EPISODE_PAIR], budget=40)
    assert len(step.rows) > 1
    policy.zero_grad()
    step.run(1.0, Reference(policy), backward=True)
    found = torch.cat([p.grad.flatten() for p in policy.parameters() if p.requires_grad and p.grad is not None])
    # The same by hand: all rows with gradient, in the same order, from the same random state.
    torch.manual_seed(3)
    policy.zero_grad()
    known = Reference(policy).of(step.rows, step.calls)
    answers = [policy(row).logprobs for row in step.rows]
    step.loss([*range(len(step.rows))], answers, known, 1.0).value.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.requires_grad and p.grad is not None])
    assert torch.linalg.norm(found - expected) <= 1e-5 * torch.linalg.norm(expected)


def test_parts_that_share_no_row_are_computed_apart(policy: Policy):
    step = Step(policy, DPO(DPOConfig(train_file=FILE)), [pair(0), pair(4)], budget=30)
    assert sorted(len(rows) for rows in step.connected_rows()) == [1, 1]


def test_no_row_keeps_the_graph_of_the_row_before(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """A CUDA graph cannot be recorded while a graph of autograd with the same weights is alive."""
    forward, graphs, alive = policy.forward, list[weakref.ref[torch.Tensor]](), list[int]()

    def watched(row):
        alive.append(sum(graph() is not None for graph in graphs))
        answers = forward(row)
        graphs.extend(map(weakref.ref, answers.trained))
        return answers

    def loss(*given):
        found = compute(*given)
        graphs.append(weakref.ref(found.value))
        return found

    compute = SFT_METHOD.loss
    monkeypatch.setattr(policy, "forward", watched)
    monkeypatch.setattr(SFT_METHOD, "loss", loss)
    Step(policy, SFT_METHOD, SFT_METHOD.parts(DEMONSTRATION), budget=16).run(10.0, None, backward=True)
    assert len(alive) > 1 and not any(alive)


def test_a_guarded_update_changes_nothing_where_it_is_told_so(monkeypatch: pytest.MonkeyPatch):
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: adamw(groups, lr=lr, fused=True))
    weight = nn.Parameter(torch.ones(3, 2))
    updater = Updater(Single(weight), SFTConfig(train_file=Path("a"), use_lora=False))
    assert updater.guarded
    updater.set_learning_rate(0, 1)
    for broken in (False, True):
        before = weight.detach().clone()
        weight.grad = torch.ones_like(weight)
        updater.clip()
        updater.apply(torch.tensor(broken))
        assert torch.equal(weight, before) == broken and weight.grad is None
    assert float(updater.optimizer.state[weight]["step"]) == 1.0


@pytest.mark.parametrize(("settings", "guarded"), [({"shard": True}, False), ({}, True)])
def test_an_update_is_guarded_where_the_optimizer_is_fused_alone(
    settings: dict[str, bool], guarded: bool, monkeypatch: pytest.MonkeyPatch
):
    policy, config = Single(nn.Parameter(torch.ones(2, 2))), SFTConfig(train_file=Path("a"), **settings)
    assert not Updater(policy, config).guarded
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: adamw(groups, lr=lr, fused=True))
    assert Updater(policy, config).guarded == guarded


class Single(nn.Module):
    """One weight."""

    device = torch.device("cpu")

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in MetricsFile.read(folder / "metrics.jsonl")]


def test_packing_ahead_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ahead, plain = trainer(tmp_path / "ahead"), trainer(tmp_path / "plain")
    ahead.train()
    monkeypatch.setattr(type(plain.source), "knows", lambda *_: False)
    plain.train()
    assert losses(tmp_path / "ahead") == losses(tmp_path / "plain") and len(losses(tmp_path / "plain")) == 4
    assert all(map(torch.equal, ahead.policy.parameters(), plain.policy.parameters()))


def test_a_batch_that_was_packed_for_another_budget_is_packed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, budgets = trainer(tmp_path), list[int]()
    rows = found.policy.rows

    def noted(*arguments: Any, budget: int, **more: Any) -> Any:
        budgets.append(budget)
        return rows(*arguments, budget=budget, **more)

    monkeypatch.setattr(found.policy, "rows", noted)
    batch = found.packer.batch(0, 512)
    assert isinstance(batch, Batch) and not isinstance(batch, PackedBatch)
    found.counters.budget = 256  # memory ran out in step 1
    later = found.packer.batch(1, 256)
    assert isinstance(later, PackedBatch) and later.budget == 512 and budgets == [512]
    found._step(later)
    assert budgets == [512, 256]
