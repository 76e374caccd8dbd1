"""Rows recorded as CUDA graphs give the gradients of rows that are computed kernel by kernel."""

import random
from typing import Any

import pytest
import torch
from torch import nn

from bough.errors import BoughError
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.recorded import PER_DOUBLING, RecordedReads, padded, uses_dropout
from bough.trees.attend import BLOCK
from bough.types import Call

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_row_is_padded_to_one_of_few_lengths_and_by_an_eighth_at_most():
    lengths = {length: padded(length) for length in range(1, 1 << 15)}
    assert all(length <= found and found % BLOCK == 0 for length, found in lengths.items())
    assert all(
        found <= max(2 * BLOCK, length + max(BLOCK, length // PER_DOUBLING)) for length, found in lengths.items()
    )
    assert len(set(lengths.values())) <= 8 + 6 * PER_DOUBLING


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_dropout_is_noticed(share: float):
    assert uses_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(share))) == (share > 0)


def test_the_dropout_of_attention_is_noticed():
    layer = nn.Linear(2, 2)
    assert not uses_dropout(layer)
    layer.attention_dropout = 0.1
    assert uses_dropout(layer)


def test_on_a_cpu_nothing_is_recorded():
    policy = Policy.load("tiny", device="cpu")
    policy.record(1000)
    assert policy.recorded is None


def calls(seed: int, count: int = 6, length: int = 80) -> list[Call]:
    draw = random.Random(seed)

    def ids(number: int) -> list[int]:
        return [draw.randrange(5, 250) for _ in range(number)]

    start = ids(length)
    return [Call(prompt_ids=start + ids(length), completion_ids=ids(20)) for _ in range(count)]


def policy_of(tuning: str, **more: Any) -> Policy:
    torch.manual_seed(0)
    lora = Lora(r=4) if tuning == "adapter" else None
    model = Policy.load("tiny", dtype=torch.float32, lora=lora, device="cuda").model
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.02)
    policy = Policy(model, autocast=torch.bfloat16, probe=False, **more)
    policy.train()
    return policy


def gradients(policy: Policy, batches: list[list[Call]]) -> list[dict[str, torch.Tensor]]:
    """Of each batch the gradient of its rows together, with a step of plain gradient descent after it."""
    found = []
    for batch in batches:
        for row in policy.rows(batch, budget=300):
            torch.cat(policy(row).logprobs).sum().backward()
        trained = {name: weight for name, weight in policy.named_parameters() if weight.grad is not None}
        found.append({name: weight.grad.clone() for name, weight in trained.items()})
        with torch.no_grad():
            for weight in trained.values():
                weight -= 1e-3 * weight.grad / weight.grad.norm().clamp(min=1e-6)
                weight.grad = None
    return found


@on_gpu
@pytest.mark.parametrize("tuning", ["adapter", "all weights"])
def test_recorded_rows_have_the_gradients_of_plain_ones_while_the_weights_change(tuning: str):
    batches = [calls(seed) for seed in range(5)]
    plain = gradients(policy_of(tuning), batches)
    policy = policy_of(tuning)
    policy.record(4096)
    assert policy.recorded
    recorded = gradients(policy, batches)
    assert policy.recorded.recordings, "nothing was recorded"
    for one, other in zip(plain, recorded, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-4 * float(one[name].abs().max())), name


@on_gpu
def test_recorded_passes_without_gradient_follow_the_weights_and_the_reference_does_not():
    policy = policy_of("adapter")
    row = policy.rows(calls(0))[0]

    def values() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            own = torch.cat(policy(row).logprobs)
            with policy.reference():
                return own, torch.cat(policy(row).logprobs)

    plain = values()
    policy.record(4096)
    assert policy.recorded
    for _ in range(3):
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(values(), plain, strict=True))
    assert len(policy.recorded.recordings) == 2
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight *= 3
    changed = values()
    assert not torch.allclose(changed[0], plain[0], atol=1e-2)
    assert torch.allclose(changed[1], plain[1], atol=1e-4)


@on_gpu
def test_rows_that_are_read_before_the_backward_pass_of_another_are_refused():
    policy = policy_of("adapter")
    policy.record(4096)
    row = policy.rows(calls(0))[0]
    for _ in range(3):
        first = torch.cat(policy(row).logprobs).sum()
    with pytest.raises(BoughError, match="overwritten"):
        (first + torch.cat(policy(row).logprobs).sum()).backward()


@on_gpu
def test_log_probabilities_of_many_rows_at_once_are_not_recorded():
    policy = policy_of("adapter")
    policy.record(4096)
    for _ in range(3):
        torch.cat(policy.logprobs(calls(0), budget=300)).sum().backward()
    assert policy.recorded and not policy.recorded.num_read


@on_gpu
def test_where_recording_fails_rows_are_computed_as_before():
    weight = nn.Parameter(torch.ones(3, device="cuda"))

    def read(token_L: torch.Tensor, _position_L: torch.Tensor, _end_L: torch.Tensor) -> torch.Tensor:
        return token_L[:, None].float() * weight * float(weight.sum())  # waits for the GPU: not allowed in a graph

    reads = RecordedReads(read, [weight], 4096)
    nodes = (torch.ones(256, dtype=torch.long, device="cuda"),) * 3
    for _ in range(3):
        reads(*nodes, "policy").sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3 * 256 * 3.0] * 3
    assert not reads.recordings and reads.limit == 0
