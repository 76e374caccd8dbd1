"""The parts of the clipped surrogate: where it clips, what it corrects for, and the divergence it measures."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.methods.grpo import aggregation_weights, clipped, grpo_loss, k3, sampler_logprobs
from bough.types import Call

CLIPS = ("clip_high_fraction", "clip_low_fraction", "dual_clip_fraction")


def test_a_ratio_at_a_bound_is_not_clipped():
    """With all bounds at 1, each token of an on-policy step is at one, and must keep its gradient."""
    log_ratio = torch.zeros(2, requires_grad=True)
    gain, metrics = clipped(log_ratio, torch.tensor([3.0, -2.0]), clip_low=0.0, clip_high=0.0, dual_clip=1.0)
    gain.sum().backward()
    assert log_ratio.grad.tolist() == [3.0, -2.0]
    assert [metrics[name].tolist() for name in CLIPS] == [[0.0, 0.0]] * 3


def test_a_token_without_an_advantage_is_not_counted_as_clipped():
    log_ratio = torch.tensor([20.0, 0.1]).log()
    _, metrics = clipped(log_ratio, torch.zeros(2), clip_low=0.2, clip_high=0.2, dual_clip=10.0)
    assert [metrics[name].tolist() for name in CLIPS] == [[0.0, 0.0]] * 3


def test_the_default_bounds_are_those_of_dapo():
    old, advantages, weights = torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.eye(4)
    ratios = torch.tensor([1.27, 1.3, 0.81, 0.79]).log()
    gains = [-grpo_loss(ratios, old, advantages, weight, denominator=1).value.item() for weight in weights]
    assert gains == pytest.approx([1.27, 1.28, -0.81, -0.8])


def sampled(num_tokens: int, logprob: float | None, temperature: float = 0.5) -> Call:
    logprobs = None if logprob is None else [logprob] * num_tokens
    return Call(
        prompt_ids=[1], completion_ids=[2] * num_tokens, logprobs=logprobs, logprobs_temperature=temperature
    )  # fmt: skip


def test_tokens_whose_sampled_logprobs_cannot_be_compared_are_not_corrected():
    calls = [sampled(2, -3.0), sampled(1, None), sampled(2, -4.0, temperature=1.0)]
    old = torch.tensor([-1.0, -1.1, -1.2, -1.3, -1.4])
    found = sampler_logprobs(calls, old, temperature=0.5)
    assert found.tolist() == pytest.approx([-3.0, -3.0, -1.2, -1.3, -1.4])


def test_k3_is_exact_for_small_log_ratios_and_smooth_at_its_bound():
    small = torch.tensor([1e-4, -1e-4, 0.0])
    assert k3(small).tolist() == pytest.approx([0.5e-8, 0.5e-8, 0.0], rel=1e-2)
    edge = torch.tensor([19.9999, 20.0001, 21.0], dtype=torch.float64, requires_grad=True)
    k3(edge).sum().backward()
    assert edge.grad.tolist() == pytest.approx([math.exp(20)] * 3, rel=2e-4)
    assert k3(edge)[2].item() == pytest.approx(2 * math.exp(20) - 22)


@settings(deadline=None, max_examples=50)
@given(st.floats(-60, 60))
def test_k3_is_never_negative(log_ratio):
    assert k3(torch.tensor([log_ratio], dtype=torch.float64)).item() >= 0


def averaged(lengths, advantages, how):
    """The on-policy loss of sequences that have one advantage each: minus the average in question."""
    weights, denominator = aggregation_weights(lengths, how, constant_length=4)
    logprobs = torch.zeros(sum(lengths))
    per_token, weights = (
        torch.repeat_interleave(torch.tensor(one), torch.tensor(lengths)) for one in (advantages, weights)
    )
    return -grpo_loss(logprobs, logprobs, per_token, weights, denominator=denominator).value.item()


HOW = ("token_mean", "sequence_mean", "constant_length")


def test_token_mean_weighs_tokens_and_sequence_mean_weighs_sequences():
    lengths, advantages = [1, 3], [1.0, -1.0]
    assert averaged(lengths, advantages, "token_mean") == pytest.approx((1 - 3) / 4)
    assert averaged(lengths, advantages, "sequence_mean") == pytest.approx((1 - 1) / 2, abs=1e-6)
    assert averaged(lengths, advantages, "constant_length") == pytest.approx((1 / 4 - 3 / 4) / 2)
    assert [averaged([4, 4], [1.0, 0.5], how) for how in HOW] == pytest.approx([0.75] * 3)
    for how in HOW[1:]:
        assert aggregation_weights([0, 2], how)[1] == 1, "a sequence without tokens counts nowhere"


@pytest.mark.parametrize("how", HOW)
@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), data=st.data())
def test_denominators_of_micro_batches_add_up(how, lengths, data):
    cut = data.draw(st.integers(0, len(lengths)))
    whole, head, tail = (aggregation_weights(part, how, 9) for part in (lengths, lengths[:cut], lengths[cut:]))
    assert (head[0] + tail[0], head[1] + tail[1]) == whole
