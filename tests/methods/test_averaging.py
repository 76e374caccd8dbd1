import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.methods.grpo import aggregation_weights, grpo_loss


def expand(lengths, how, **settings):
    weights, denominator = aggregation_weights(lengths, how, **settings)
    return torch.repeat_interleave(torch.tensor(weights), torch.tensor(lengths)), denominator


def averaged(lengths, advantages, how, **settings):
    """The on-policy loss of sequences that have one advantage each: minus the average in question."""
    weights, denominator = expand(lengths, how, **settings)
    logprobs = torch.zeros(sum(lengths))
    per_token = torch.repeat_interleave(torch.tensor(advantages), torch.tensor(lengths))
    return -grpo_loss(logprobs, logprobs, per_token, weights, denominator=denominator).value.item()


def test_token_mean_weighs_tokens_and_sequence_mean_weighs_sequences():
    lengths, advantages = [1, 3], [1.0, -1.0]
    assert averaged(lengths, advantages, "token_mean") == pytest.approx((1 - 3) / 4)
    assert averaged(lengths, advantages, "sequence_mean") == pytest.approx((1 - 1) / 2, abs=1e-6)
    assert averaged(lengths, advantages, "constant_length", constant_length=4) == pytest.approx((1 / 4 - 3 / 4) / 2)


def test_on_equal_lengths_all_averages_agree():
    values = [
        averaged([4, 4], [1.0, 0.5], how, constant_length=4)
        for how in ("token_mean", "sequence_mean", "constant_length")
    ]
    assert values == pytest.approx([0.75] * 3)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant_length"])
@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), data=st.data())
def test_denominators_of_micro_batches_add_up(how, lengths, data):
    cut = data.draw(st.integers(0, len(lengths)))
    whole, head, tail = (
        aggregation_weights(part, how, constant_length=9) for part in (lengths, lengths[:cut], lengths[cut:])
    )
    assert head.weights + tail.weights == whole.weights
    assert head.denominator + tail.denominator == whole.denominator


def test_a_sequence_without_tokens_counts_nowhere():
    assert aggregation_weights([0, 2], "sequence_mean").denominator == 1
    assert aggregation_weights([0, 2], "constant_length", constant_length=4).denominator == 1
