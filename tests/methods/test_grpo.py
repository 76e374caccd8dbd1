import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.errors import InputError
from bough.ledger import add_metrics
from bough.methods.grpo import GRPOConfig, grpo_loss


def one_token(ratio, advantage, **settings):
    """Value and gradient of one token whose probability has become `ratio` times the old one."""
    logprob = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    settings = {"clip_low": 0.2, "clip_high": 0.3, **settings}
    loss, metrics = grpo_loss(
        logprob, torch.tensor([-1.0]), torch.tensor([advantage]), torch.ones(1), denominator=1, **settings
    )
    loss.backward()
    clipped = {name.removesuffix("_fraction") for name, mean in metrics.items() if "clip" in name and mean.value}
    return loss.item(), logprob.grad.item(), clipped


def test_on_policy_loss_is_minus_the_mean_advantage():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([3.0, 3.0, -1.5])
    loss, metrics = grpo_loss(logprobs, logprobs.detach(), advantages, torch.ones(3), denominator=3)
    loss.backward()
    assert loss.item() == -(3.0 + 3.0 - 1.5) / 3
    assert logprobs.grad.tolist() == [-1.0, -1.0, 0.5]
    assert (metrics["ratio"].value, metrics["approx_kl"].value) == (1.0, 0.0)
    assert metrics["entropy"].value == pytest.approx(3.5 / 3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient", "clipped"),
    [
        (1.5, 2.0, -1.3 * 2, 0.0, {"clip_high"}),  # a good token, already more likely: stop
        (0.5, 2.0, -0.5 * 2, -0.5 * 2, set()),  # a good token, less likely: back up
        (0.5, -2.0, 0.8 * 2, 0.0, {"clip_low"}),  # a bad token, already less likely: stop
        (1.5, -2.0, 1.5 * 2, 1.5 * 2, set()),  # a bad token, more likely: back down
        (1.25, 2.0, -1.25 * 2, -1.25 * 2, set()),
        (0.85, -2.0, 0.85 * 2, 0.85 * 2, set()),
    ],
)
def test_the_clip_stops_a_token_only_on_the_side_its_advantage_pushes_to(ratio, advantage, value, gradient, clipped):
    assert one_token(ratio, advantage) == (pytest.approx(value), pytest.approx(gradient), clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient", "clipped"),
    [
        (20.0, -2.0, 10 * 2, 0.0, {"dual_clip"}),
        (9.0, -2.0, 9 * 2, 9 * 2, set()),
        (20.0, 2.0, -1.3 * 2, 0.0, {"clip_high"}),
        (0.5, -2.0, 0.8 * 2, 0.0, {"clip_low"}),
    ],
)
def test_dual_clip_bounds_what_a_bad_token_can_cost(ratio, advantage, value, gradient, clipped):
    assert one_token(ratio, advantage, dual_clip=10.0) == (pytest.approx(value), pytest.approx(gradient), clipped)


def test_ratio_and_approx_kl_measure_how_far_the_policy_has_moved():
    arguments = torch.log(torch.tensor([2.0, 0.5])) - 1, torch.tensor([-1.0, -1.0]), torch.ones(2), torch.ones(2)
    metrics = grpo_loss(*arguments, denominator=2).metrics
    assert metrics["ratio"].value == pytest.approx(1.25)
    assert metrics["approx_kl"].value == pytest.approx(((2 - math.log(2) - 1) + (0.5 + math.log(2) - 1)) / 2)
    one_way = grpo_loss(*[tensor[:1] for tensor in arguments], denominator=2).metrics
    assert one_way["approx_kl"].value == pytest.approx(2 - math.log(2) - 1)  # not 1/2 + ln 2 − 1


def test_weights_and_denominator_scale_each_tokens_gradient():
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weights = torch.tensor([1.0, 0.5, 0.0])
    loss, metrics = grpo_loss(logprobs, logprobs.detach(), torch.tensor([1.0, 2.0, 9.0]), weights, denominator=4)
    loss.backward()
    assert loss.item() == -0.5
    assert logprobs.grad.tolist() == [-0.25, -0.25, 0.0]
    assert metrics["ratio"].count == 2


def test_kl_pulls_towards_the_reference_on_both_sides():
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    reference = torch.tensor([-1.0 + math.log(2), -1.0 - math.log(2), -1.0])
    loss, metrics = grpo_loss(
        logprobs, logprobs.detach(), torch.zeros(3), torch.ones(3), denominator=1, kl_coef=0.5,
        reference_logprobs_N=reference,
    )  # fmt: skip
    loss.backward()
    terms = [2 - math.log(2) - 1, 0.5 + math.log(2) - 1, 0.0]
    assert loss.item() == pytest.approx(0.5 * sum(terms))
    assert logprobs.grad.tolist() == pytest.approx([0.5 * (1 - 2), 0.5 * (1 - 0.5), 0.0])
    assert metrics["reference_kl"].value == pytest.approx(sum(terms) / 3)


def test_a_reference_without_kl_coef_is_only_measured():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    arguments = (logprobs, logprobs.detach(), torch.ones(1), torch.ones(1))
    loss, metrics = grpo_loss(*arguments, denominator=1, reference_logprobs_N=torch.tensor([-3.0]))
    loss.backward()
    assert (loss.item(), logprobs.grad.item()) == (-1.0, -1.0)
    assert metrics["reference_kl"].value == pytest.approx(math.exp(-2) + 2 - 1)


def test_importance_sampling_reweighs_tokens_up_to_a_cap():
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    sampler = torch.tensor([-1.0 + math.log(2), -1.0 - math.log(1.5), -1.0 - math.log(8)])  # s = 1/2, 3/2, 8
    advantages = torch.tensor([1.0, -1.0, 1.0])
    loss, metrics = grpo_loss(
        logprobs, logprobs.detach(), advantages, torch.ones(3), denominator=1, sampler_logprobs_N=sampler
    )  # fmt: skip
    loss.backward()
    assert loss.item() == pytest.approx(-(0.5 - 1.5 + 2.0))
    assert logprobs.grad.tolist() == pytest.approx([-0.5, 1.5, -2.0])
    assert metrics["importance_weight"].value == pytest.approx((0.5 + 1.5 + 2.0) / 3)
    assert metrics["importance_capped_fraction"].value == pytest.approx(1 / 3)
    assert metrics["mismatch_kl"].value == pytest.approx(sum(s - math.log(s) - 1 for s in (0.5, 1.5, 8)) / 3)


def test_gradients_reach_the_policy_only():
    names = ["old", "sampler", "reference"]
    old, sampler, reference = (torch.tensor([-1.5, -0.5], requires_grad=True) for _ in names)
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss, metrics = grpo_loss(
        logprobs, old, torch.ones(2), torch.ones(2), denominator=2, kl_coef=0.1,
        reference_logprobs_N=reference, sampler_logprobs_N=sampler,
    )  # fmt: skip
    loss.backward()
    assert logprobs.grad is not None
    assert [tensor.grad for tensor in (old, sampler, reference)] == [None, None, None]
    assert not any(mean.total.requires_grad for mean in metrics.values())


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-500.0, -90.0, 90.0, 500.0])
def test_a_policy_gone_far_astray_still_has_a_finite_loss_and_gradient(log_ratio, advantage):
    logprob = torch.tensor([log_ratio], requires_grad=True)
    loss, metrics = grpo_loss(
        logprob, torch.zeros(1), torch.tensor([advantage]), torch.ones(1), denominator=1, kl_coef=0.1,
        reference_logprobs_N=torch.zeros(1), sampler_logprobs_N=-logprob.detach(),
    )  # fmt: skip
    loss.backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(logprob.grad.item())
    assert all(math.isfinite(mean.value) for mean in metrics.values())
    if log_ratio < 0:
        assert logprob.grad.item() < -1e6  # far below the reference, the KL term still pulls back up
    elif advantage < 0:
        assert logprob.grad.item() > 1e6  # a bad token grown likely is still pushed down


def test_nothing_waits_for_the_device():
    one = torch.zeros(3, device="meta")  # reading a number off it would raise
    extras = {"reference_logprobs_N": one, "sampler_logprobs_N": one}
    loss, metrics = grpo_loss(one, one, one, one, denominator=3, dual_clip=10.0, kl_coef=0.1, **extras)
    assert loss.is_meta
    assert all(mean.total.is_meta and mean.count.is_meta for mean in metrics.values())


def naive_loss(tokens, *, clip_low, clip_high, dual_clip, kl_coef, cap, denominator):
    total = 0.0
    for logprob, old, sampler, reference, advantage, weight in tokens:
        ratio = math.exp(logprob - old)
        gain = min(ratio * advantage, min(max(ratio, 1 - clip_low), 1 + clip_high) * advantage)
        if advantage < 0:
            gain = max(gain, dual_clip * advantage)
        d = reference - logprob
        total -= weight * (min(math.exp(old - sampler), cap) * gain - kl_coef * (math.exp(d) - d - 1))
    return total / denominator


def batch_loss(tokens, **settings):
    logprobs, old, sampler, reference, advantages, weights = torch.tensor(tokens).reshape(-1, 6).T
    extras = {"sampler_logprobs_N": sampler, "reference_logprobs_N": reference}
    return grpo_loss(logprobs, old, advantages, weights, **extras, **settings)


TOKENS = st.lists(
    st.tuples(*[st.floats(-4, 0, width=32)] * 4, st.floats(-3, 3, width=32), st.sampled_from([0.0, 0.25, 1.0])),
    min_size=1,
    max_size=10,
)


@settings(deadline=None, max_examples=50)
@given(TOKENS, st.data())
def test_the_loss_equals_its_naive_form_and_micro_batches_add_up(tokens, data):
    settings = {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": 5.0, "kl_coef": 0.3, "denominator": 13}
    whole = batch_loss(tokens, **settings)
    assert whole.value.item() == pytest.approx(naive_loss(tokens, cap=2.0, **settings), rel=1e-4, abs=1e-5)

    cut = data.draw(st.integers(0, len(tokens)))
    parts = [batch_loss(part, **settings) for part in (tokens[:cut], tokens[cut:])]
    assert sum(part.value.item() for part in parts) == pytest.approx(whole.value.item(), rel=1e-4, abs=1e-5)
    added = add_metrics(part.metrics for part in parts)
    for name, mean in whole.metrics.items():
        assert added[name].value == pytest.approx(mean.value, rel=1e-4, abs=1e-5, nan_ok=True)


PLAYED: dict[str, Any] = {"environment": "household", "max_steps": 1, "train_file": None}


def test_gradients_are_those_of_the_formula():
    generator = torch.Generator().manual_seed(1)
    logprobs, old, reference = -2 * torch.rand(3, 16, generator=generator, dtype=torch.float64)
    advantages = torch.randn(16, generator=generator, dtype=torch.float64)

    def value(policy):
        return grpo_loss(
            policy, old, advantages, torch.ones(16), denominator=16, dual_clip=3.0, kl_coef=0.2,
            reference_logprobs_N=reference,
        ).value  # fmt: skip

    assert torch.autograd.gradcheck(value, (logprobs.requires_grad_(),))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_low": 1.1}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"clip_high": 0.28, "dual_clip": 1.2}, "above 1.28"),
        ({"averaging": "token-mean"}, "choose one of 'token_mean'"),
        ({"averaging": "constant_length"}, "needs constant_length"),
        (PLAYED | {"averaging": "constant_length", "train_file": None}, "needs constant_length"),
        ({"step_formula": "bound"}, "choose one of 'bounded'"),
        ({"engine": "vllm"}, "engine vllm needs environment"),
        ({"attempt_weight": 0.5}, "attempt_weight needs advantage state or graph"),
        ({"eval_steps": 5}, "eval_steps needs eval_file"),
        (PLAYED | {"curriculum": True}, "for data on file"),
        (PLAYED | {"kl_coef": 0.1, "use_lora": False}, "kl_coef with environment needs use_lora"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings: dict[str, Any], said: str):
    with pytest.raises(InputError) as error:
        GRPOConfig(**{"train_file": "groups.jsonl"} | settings)
    assert said in "".join(error.value.problems)


def test_settings_that_go_together_are_taken():
    GRPOConfig(train_file="groups.jsonl", clip_high=0.28, dual_clip=1.3)
    GRPOConfig(train_file="groups.jsonl", curriculum=True)
    GRPOConfig(train_file="groups.jsonl", averaging="constant_length", constant_length=64)
    GRPOConfig(**PLAYED, engine="vllm")


def test_a_divergence_needs_a_reference():
    one = torch.zeros(1)
    with pytest.raises(AssertionError, match="needs a reference"):
        grpo_loss(one, one, one, one, denominator=1, kl_coef=0.1)
