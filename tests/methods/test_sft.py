import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.template import CallBuilder, load_template
from bough.data.trl import LABEL
from bough.ledger import add_metrics
from bough.methods.sft import SFT, Demonstration, SFTConfig, sft_loss, step_weights
from bough.types import Call, Message, Task, Trajectory, Turn

REWARDS = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=8)


def test_with_equal_weights_the_loss_is_the_mean_nll():
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss, metrics = sft_loss(logprobs, torch.ones(3), denominator=3)
    loss.backward()
    assert loss.item() == 2.0
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3] * 3)
    assert (metrics["nll"].value, metrics["weight"].value) == (2.0, 1.0)


def test_a_weight_scales_its_tokens_gradient():
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    loss, metrics = sft_loss(logprobs, torch.tensor([2.0, 1.0, 0.0]), denominator=4)
    loss.backward()
    assert loss.item() == 1.0  # (2·1 + 1·2 + 0·4) / 4
    assert logprobs.grad.tolist() == [-0.5, -0.25, 0.0]
    assert metrics["nll"].value == 1.5  # unweighted, without the token that is not trained
    assert metrics["weight"].value == 1.0


def test_bfloat16_log_probabilities_are_summed_in_float32():
    logprobs = torch.full((1001,), -1.0, dtype=torch.bfloat16)
    assert sft_loss(logprobs, torch.ones(1001), denominator=1).value.item() == 1001.0


def test_a_micro_batch_without_tokens_adds_nothing():
    empty = torch.zeros(0, requires_grad=True)
    loss, metrics = sft_loss(empty, torch.zeros(0), denominator=5)
    loss.backward()
    assert loss.item() == 0.0
    assert math.isnan(metrics["nll"].value)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(0, 5)), min_size=2, max_size=12), st.data())
def test_micro_batches_add_up_to_the_whole_batch(tokens, data):
    cut = data.draw(st.integers(0, len(tokens)))
    logprobs, weights = torch.tensor(tokens).unbind(1)
    parts = [sft_loss(logprobs[s], weights[s], denominator=7) for s in (slice(cut), slice(cut, None))]
    whole = sft_loss(logprobs, weights, denominator=7)
    assert sum(part.value.item() for part in parts) == pytest.approx(whole.value.item(), rel=1e-5, abs=1e-6)
    naive = sum(-w * lp for lp, w in tokens) / 7
    assert whole.value.item() == pytest.approx(naive, rel=1e-5, abs=1e-6)
    added = add_metrics(part.metrics for part in parts)
    for name, mean in whole.metrics.items():
        assert added[name].value == pytest.approx(mean.value, rel=1e-5, nan_ok=True)


def test_a_demonstrations_calls_are_trained_with_their_weights():
    method = SFT(SFTConfig(model="tiny", train_file="unused"))
    calls = [Call(prompt_ids=[1], completion_ids=[2, 3]), Call(prompt_ids=[1, 2, 3], completion_ids=[4])]
    example = Demonstration(calls, weights=(0.5, 2.0))
    assert method.amount(example) == 2 * 0.5 + 2.0
    parts = method.parts(example)
    assert [(part.calls, part.weights) for part in parts] == [(calls[:1], (0.5,)), (calls[1:], (2.0,))]
    logprobs = [[torch.tensor([-1.0, -3.0], requires_grad=True)], [torch.tensor([-2.0], requires_grad=True)]]
    loss, metrics = method.loss(parts, logprobs, None, method.amount(example))
    loss.backward()
    assert loss.item() == (0.5 * 4 + 2 * 2) / 3 and metrics["nll"].value == 2.0
    assert [found.grad.tolist() for (found,) in logprobs] == [pytest.approx([-0.5 / 3] * 2), pytest.approx([-2 / 3])]


def demonstration(*rewards: float | None, **scores: float) -> Trajectory:
    turns = [
        Turn(
            reply=Message(role="assistant", content=f"reply {t}"),
            reward=reward,
            observation=[Message(role="user", content="And then?")],
        )
        for t, reward in enumerate(rewards)
    ]
    start = [Message(role="user", content="Go.")]
    return Trajectory(id="a", task=Task(id="t"), start=start, turns=turns, rewards=scores)


def test_a_reply_of_weight_zero_is_not_trained():
    record, builder = demonstration(-1.0, 1.0, None, 0.0), CallBuilder(load_template("tiny"))
    for weighted, replies in [(True, ["reply 1", "reply 2"]), (False, [f"reply {t}" for t in range(4)])]:
        method = SFT(SFTConfig(model="tiny", train_file="unused", step_weighted_loss=weighted))
        found = method.examples([record], builder)
        [example] = found.examples
        assert [call.text for call in example.calls] == replies and found.calls.kept == len(replies)
        assert len(example.weights) == len(replies) and min(example.weights) > 0


def test_replies_labelled_as_bad_are_not_imitated():
    records = [demonstration(None, **{LABEL: label}) for label in (0.0, 1.0, 0.0)]
    method = SFT(SFTConfig(model="tiny", train_file="unused", on_error="skip"))
    found = method.examples(records, CallBuilder(load_template("tiny")))
    assert [example.place for example in found.examples] == ["records:2"]
    assert found.rows.dropped == {"undesirable": 2}


def test_a_steps_weight_is_its_reward_over_the_mean_reward():
    assert step_weights([0.7, 0.9]) == pytest.approx([0.875, 1.125])
    assert step_weights([3.0, 1.0, 2.0]) == pytest.approx([1.5, 0.5, 1.0])


def test_a_negative_reward_counts_as_zero():
    assert step_weights([1.0, -5.0]) == [2.0, 0.0]
    assert step_weights([-1.0, 1.0, 3.0]) == pytest.approx([0.0, 0.75, 2.25])


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [-1.0, -2.0], [-1.0, 0.0], [None, None], [None, -1.0]])
def test_where_no_reward_is_positive_all_steps_weigh_one(rewards):
    assert step_weights(rewards) == [1.0, 1.0]


def test_an_unscored_step_weighs_one_and_does_not_move_the_mean():
    assert step_weights([1.0, None, 3.0]) == [0.5, 1.0, 1.5]


def test_the_largest_and_smallest_rewards_do_not_break_the_mean():
    assert step_weights([1e308, 1e308, 1e308]) == [1.0, 1.0, 1.0]
    assert step_weights([5e-324, 0.0]) == [2.0, 0.0]


@settings(deadline=None, max_examples=50)
@given(REWARDS)
def test_weights_are_never_negative_average_one_and_keep_the_rewards_order(rewards):
    weights = step_weights(rewards)
    scored = sorted((r, w) for r, w in zip(rewards, weights, strict=True) if r is not None)
    assert len(weights) == len(rewards)
    assert all(0 <= w <= max(len(scored), 1) * (1 + 1e-9) for w in weights)
    assert sum(weights) / len(weights) == pytest.approx(1.0)
    assert [w for _, w in scored] == sorted(w for _, w in scored)
