"""The load-balancing loss of a mixture of experts in a step."""

from pathlib import Path

import pytest
import torch
import transformers

from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.models.miniature import miniature
from bough.policy.adapters import Lora, add_actor
from bough.policy.policy import Policy
from bough.policy.probe import CALLS
from bough.policy.reference import Reference
from bough.training.step import Step

FILE = Path("a.jsonl")
COEFFICIENT = 0.5


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig())
    torch.manual_seed(0)
    policy = Policy(add_actor(miniature(outline), Lora(r=2)))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    return policy


def gradient(policy: Policy, step: Step, coefficient: float, **how) -> torch.Tensor:
    policy.zero_grad()
    policy.router_coefficient = coefficient
    step.run(10.0, Reference(policy), backward=True, **how)
    return gathered(policy)


def gathered(policy: Policy) -> torch.Tensor:
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in trained])


@pytest.mark.parametrize("budget", [4096, 40])
def test_the_loss_is_the_mean_over_computed_tokens_times_its_coefficient(policy, budget):
    sft = SFT(SFTConfig(train_file=FILE))
    step = Step(policy, sft, sft.parts(Demonstration(calls=CALLS, weights=(1.0,) * 5)), budget=budget)
    difference = gradient(policy, step, COEFFICIENT) - gradient(policy, step, 0.0)
    policy.zero_grad()
    for row in step.rows:
        (policy(row).routing.loss * row.tokens.size / step.num_tokens).backward()
    expected = gathered(policy)
    expected *= COEFFICIENT
    assert (difference - expected).norm() < 1e-3 * expected.norm()


def test_a_pair_that_spans_rows_gets_it_too(policy):
    method = DPO(DPOConfig(train_file=FILE))
    pair = Preference(calls=CALLS, num_chosen=2, reason="loop")
    step = Step(policy, method, method.parts(pair), budget=40)
    assert len(step.rows) > 1
    with_it, without = gradient(policy, step, COEFFICIENT), gradient(policy, step, 0.0)
    assert (with_it - without).norm() > 1e-3 * without.norm()
    half = gradient(policy, step, COEFFICIENT, all_tokens=2 * step.num_tokens)
    assert (half - without - (with_it - without) / 2).norm() < 1e-3 * (with_it - without).norm()


def test_routing_is_counted(policy):
    sft = SFT(SFTConfig(train_file=FILE))
    step = Step(policy, sft, sft.parts(Demonstration(calls=CALLS, weights=(1.0,) * 5)), budget=4096)
    metrics = step.run(10.0, None, backward=False).metrics
    assert 1 / 4 <= metrics["busiest_expert"].value <= 1 / 2  # two of four experts for each token
    assert metrics["router_aux_loss"].value > 1.9
    assert metrics["router_aux_loss"].count == step.num_tokens
