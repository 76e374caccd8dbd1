import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.template import CallBuilder, load_template
from bough.errors import InputError
from bough.ledger import add_metrics
from bough.methods.dpo import DPO, DPOConfig, PairLossType, Preference, Sides, dpo_loss
from bough.types import Call, Message, Pair, Task, Turn

LN2 = math.log(2)
SETTINGS = {
    "sigmoid": {"label_smoothing": 0.1},
    "hinge": {},
    "ipo": {},
    "length_normalised": {"label_smoothing": 0.1},
    "simpo": {"gamma": 0.4, "label_smoothing": 0.1},
}


def sides(chosen, rejected, *, grad=False):
    return Sides(torch.tensor(chosen, requires_grad=grad), torch.tensor(rejected, requires_grad=grad))


def one_pair(h, **settings):
    """The loss of one pair whose chosen side gained `h` on its reference, one token on each side."""
    policy = sides([-1.0 + h], [-1.0], grad=True)
    reference = None if settings.get("loss_type") == "simpo" else sides([-1.0], [-1.0])
    loss = dpo_loss(policy, reference, sides([1.0], [1.0]), denominator=1, **settings)
    loss.value.backward()
    return loss.value.item(), policy.chosen.grad.item(), policy.rejected.grad.item()


def test_at_the_reference_the_loss_is_log_2_and_the_sides_part_with_slope_beta_over_2():
    policy = sides([-3.0, -7.0], [-5.0, -2.0], grad=True)
    loss, metrics = dpo_loss(
        policy, Sides(policy.chosen.detach(), policy.rejected.detach()), sides([3, 3], [2, 2]), denominator=2, beta=0.5
    )
    loss.backward()
    assert loss.item() == pytest.approx(LN2)
    assert policy.chosen.grad.tolist() == pytest.approx([-0.5 / 2 / 2] * 2)  # β/2, over 2 pairs
    assert policy.rejected.grad.tolist() == pytest.approx([0.5 / 2 / 2] * 2)
    assert (metrics["margin"].value, metrics["accuracy"].value) == (0.0, 0.0)


def test_with_label_smoothing_the_best_margin_is_finite():
    _, chosen_grad, _ = one_pair(math.log(0.9 / 0.1), beta=1.0, label_smoothing=0.1)
    assert chosen_grad == pytest.approx(0.0, abs=1e-6)


def test_ipo_is_least_where_the_margin_is_one_over_two_beta():
    assert one_pair(5.0, loss_type="ipo", beta=0.1) == pytest.approx((0.0, 0.0, 0.0))
    assert one_pair(0.0, loss_type="ipo", beta=0.1) == pytest.approx((25.0, -10.0, 10.0))
    assert one_pair(7.0, loss_type="ipo", beta=0.1) == pytest.approx((4.0, 4.0, -4.0))


def test_hinge_stops_at_a_scaled_margin_of_one():
    assert one_pair(1.0, loss_type="hinge", beta=0.5) == pytest.approx((0.5, -0.5, 0.5))
    assert one_pair(3.0, loss_type="hinge", beta=0.5) == (0.0, 0.0, 0.0)


def test_simpo_asks_for_a_margin_and_knows_no_reference():
    value, chosen_grad, _ = one_pair(0.5, loss_type="simpo", beta=2.0, gamma=1.0)
    assert value == pytest.approx(LN2)  # β·0.5 − γ = 0
    assert chosen_grad == pytest.approx(-1.0)  # −β σ(0)


@pytest.mark.parametrize("loss_type", ["ipo", "length_normalised", "simpo"])
def test_averaged_losses_see_means_per_token(loss_type):
    reference = None if loss_type == "simpo" else sides([-4.0], [-6.0])
    policy = sides([-2.0], [-9.0], grad=True)
    loss = dpo_loss(policy, reference, sides([2], [3]), denominator=1, loss_type=loss_type, beta=1.0)
    loss.value.backward()
    h = 1.0 - -1.0 if reference else -1.0 - -3.0  # 2.0 either way
    assert loss.metrics["margin"].value == pytest.approx(h)
    expected = (h - 0.5) ** 2 if loss_type == "ipo" else math.log(1 + math.exp(-h))
    assert loss.value.item() == pytest.approx(expected)
    assert policy.chosen.grad.item() / policy.rejected.grad.item() == pytest.approx(-3 / 2)  # 1/2 against 1/3


def test_nll_is_the_chosen_sides_mean_per_token_averaged_over_pairs():
    policy = sides([-4.0, -3.0], [-5.0, -2.0], grad=True)
    reference = Sides(policy.chosen.detach(), policy.rejected.detach())
    loss, metrics = dpo_loss(policy, reference, sides([4, 1], [1, 1]), denominator=2, beta=0.2, nll_alpha=0.5)
    loss.backward()
    assert metrics["nll"].value == 2.0  # (4/4 + 3/1) / 2
    assert metrics["preference_loss"].value == pytest.approx(LN2)
    assert loss.item() == pytest.approx(LN2 + 0.5 * 2.0)
    assert policy.chosen.grad.tolist() == pytest.approx([-0.05 - 0.5 / 4 / 2, -0.05 - 0.5 / 1 / 2])
    assert policy.rejected.grad.tolist() == pytest.approx([0.05, 0.05])


def test_metrics_are_told_per_reason_too():
    policy, reference = sides([-1.0, -2.0, -3.0], [-2.0, -1.0, -9.0]), sides([-2.0] * 3, [-2.0] * 3)
    lengths = sides([2] * 3, [3] * 3)
    _, metrics = dpo_loss(policy, reference, lengths, denominator=3, beta=0.5, reasons=["loop", "loop", None])
    names = ["accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob"]
    assert [metrics[name].value for name in names] == pytest.approx([2 / 3, 1.0, 0.0, -1.0, -2.0, -4.0])
    assert [metrics[f"{name}/loop"].value for name in names] == pytest.approx([0.5, 0.0, 0.25, 0.25, -1.5, -1.5])
    assert {name.partition("/")[2] for name in metrics} == {"", "loop"}


def test_metrics_per_reason_come_in_the_same_order_in_every_run():
    # Text hashes differently in every process, so that a set of eight is in order by accident once in 40,000 runs.
    reasons = [f"reason {i}" for i in range(8)]
    eight = Sides(*torch.zeros(2, 8))
    _, metrics = dpo_loss(eight, eight, eight, denominator=8, reasons=reasons[::-1])
    assert [name for name in metrics if name.startswith("margin/")] == [f"margin/{reason}" for reason in reasons]


def naive_loss(pair, loss_type, beta, *, label_smoothing=0.0, gamma=0.0):
    chosen, rejected, ref_chosen, ref_rejected, num_chosen, num_rejected = pair
    if loss_type == "simpo":
        h = chosen / num_chosen - rejected / num_rejected
    elif loss_type in ("ipo", "length_normalised"):
        h = (chosen - ref_chosen) / num_chosen - (rejected - ref_rejected) / num_rejected
    else:
        h = chosen - ref_chosen - rejected + ref_rejected
    if loss_type == "ipo":
        return (h - 0.5 / beta) ** 2
    if loss_type == "hinge":
        return max(0.0, 1 - beta * h)
    p = 1 / (1 + math.exp(gamma - beta * h))
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p)


PAIRS = st.lists(
    st.tuples(*[st.floats(-30, 0)] * 4, *[st.integers(1, 9)] * 2, st.sampled_from(["loop", "early", None])),
    min_size=1,
    max_size=6,
)


def batch_loss(pairs, loss_type, **settings):
    *numbers, reasons = zip(*pairs, strict=True) if pairs else [()] * 7
    chosen, rejected, ref_chosen, ref_rejected, num_chosen, num_rejected = map(torch.tensor, numbers)
    reference = None if loss_type == "simpo" else Sides(ref_chosen, ref_rejected)
    policy, lengths = Sides(chosen, rejected), Sides(num_chosen, num_rejected)
    return dpo_loss(policy, reference, lengths, loss_type=loss_type, reasons=reasons, **settings)


@pytest.mark.parametrize("loss_type", get_args(PairLossType))
@settings(deadline=None, max_examples=50)
@given(pairs=PAIRS, data=st.data())
def test_every_loss_equals_its_naive_form_and_its_micro_batches_add_up(loss_type, pairs, data):
    settings = {"beta": 0.3, "denominator": 11, "nll_alpha": 0.7, **SETTINGS[loss_type]}
    whole = batch_loss(pairs, loss_type, **settings)
    naive = sum(naive_loss(p[:6], loss_type, 0.3, **SETTINGS[loss_type]) - 0.7 * p[0] / p[4] for p in pairs) / 11
    assert whole.value.item() == pytest.approx(naive, rel=1e-4, abs=1e-5)

    cut = data.draw(st.integers(0, len(pairs)))
    parts = [batch_loss(part, loss_type, **settings) for part in (pairs[:cut], pairs[cut:])]
    assert sum(part.value.item() for part in parts) == pytest.approx(whole.value.item(), rel=1e-5, abs=1e-5)
    added = add_metrics(part.metrics for part in parts)
    assert added.keys() == whole.metrics.keys()
    for name, mean in whole.metrics.items():
        assert added[name].value == pytest.approx(mean.value, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("loss_type", get_args(PairLossType))
def test_gradients_are_those_of_the_formula(loss_type):
    generator = torch.Generator().manual_seed(0)
    numbers = [(-5 * torch.rand(4, generator=generator, dtype=torch.float64)).requires_grad_(i < 2) for i in range(4)]
    lengths = sides([1, 2, 3, 4], [4, 1, 2, 3])

    def value(chosen, rejected):
        reference = None if loss_type == "simpo" else Sides(numbers[2], numbers[3])
        settings = {"loss_type": loss_type, "beta": 0.7, "nll_alpha": 0.3, **SETTINGS[loss_type]}
        return dpo_loss(Sides(chosen, rejected), reference, lengths, denominator=4, **settings).value

    assert torch.autograd.gradcheck(value, (numbers[0], numbers[1]))


def test_no_gradient_reaches_the_reference():
    reference = sides([-1.0], [-1.0], grad=True)
    loss = dpo_loss(sides([-2.0], [-1.0], grad=True), reference, sides([1], [1]), denominator=1).value
    loss.backward()
    assert reference.chosen.grad is None
    assert reference.rejected.grad is None


@pytest.mark.parametrize("loss_type", get_args(PairLossType))
@pytest.mark.parametrize("sign", [1, -1])
def test_huge_margins_stay_finite(loss_type, sign):
    h = torch.tensor([1e5 * sign], requires_grad=True)
    zeros = sides([0.0], [0.0])
    reference = None if loss_type == "simpo" else zeros
    settings = {"loss_type": loss_type, "beta": 5.0, **SETTINGS[loss_type]}
    loss = dpo_loss(Sides(h, zeros.rejected), reference, sides([1], [1]), denominator=1, **settings).value
    loss.backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(h.grad.item())


def test_nothing_waits_for_the_device():
    one = Sides(*torch.zeros(2, 3, device="meta"))  # reading a number off it would raise
    loss, metrics = dpo_loss(one, one, one, denominator=3, reasons=["loop", None, "early"])
    assert loss.is_meta
    assert all(mean.total.is_meta and mean.count.is_meta for mean in metrics.values())


def test_an_empty_side_counts_as_log_probability_zero():
    loss = dpo_loss(
        sides([-1.0], [0.0]), sides([-1.0], [0.0]), sides([1], [0]), denominator=1, loss_type="ipo", beta=0.5
    )
    assert loss.value.item() == 1.0
    chosen_empty = sides([0.0], [-1.0])
    loss = dpo_loss(chosen_empty, chosen_empty, sides([0], [1]), denominator=1, loss_type="ipo", beta=0.5, nll_alpha=1)
    assert loss.value.item() == 1.0 and loss.metrics["nll"].value == 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": "sigmiod"}, "choose one of 'sigmoid'"),
        ({"beta": 0.0}, "beta is 0.0; it should be greater than 0"),
        ({"label_smoothing": 0.5}, "it should be less than 0.5"),
        ({"label_smoothing": -0.1}, "it should be greater than or equal to 0"),
        ({"loss_type": "ipo", "label_smoothing": 0.1}, "not defined for the ipo loss"),
        ({"loss_type": "hinge", "label_smoothing": 0.1}, "not defined for the hinge loss"),
        ({"gamma": 0.5}, "the sigmoid loss has none"),
        ({"loss_type": "kto", "desirable_weight": 0, "undesirable_weight": 0}, "both 0"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings: dict[str, Any], said: str):
    with pytest.raises(InputError) as error:
        DPOConfig(train_file="pairs.jsonl", **settings)
    assert said in "".join(error.value.problems)


@pytest.mark.parametrize(("loss_type", "reference"), [("sigmoid", None), ("simpo", sides([-1.0], [-1.0]))])
def test_every_loss_but_simpo_has_a_reference(loss_type: PairLossType, reference: Sides | None):
    one = sides([-1.0], [-1.0])
    assert DPO(DPOConfig(train_file="pairs.jsonl", loss_type=loss_type)).needs_reference == (reference is None)
    with pytest.raises(AssertionError, match="has a reference"):
        dpo_loss(one, reference, one, denominator=1, loss_type=loss_type)


def said(text: str, **more: Any) -> Turn:
    observation = [Message(role="user", content="And then?")]
    return Turn(reply=Message(role="assistant", content=text), observation=observation, **more)


def pair_of(chosen: list[Turn], rejected: list[Turn]) -> Pair:
    start = [Message(role="user", content="Go.")]
    return Pair(task=Task(id="t"), start=start, chosen=chosen, rejected=rejected, reason="loop", margin=0.5)


def test_a_pair_has_the_calls_of_its_chosen_side_then_those_of_its_rejected_side():
    record = pair_of([said("not this", trained=False), said("a"), said("b")], [said("c")])
    method = DPO(DPOConfig(model="tiny", train_file="unused"))
    found = method.examples([record], CallBuilder(load_template("tiny")))
    [pair] = found.examples
    assert [call.text for call in pair.calls] == ["a", "b", "c"] and pair.num_chosen == 2
    assert (pair.reason, pair.margin) == ("loop", 0.5) and found.rows.kept == 1


def test_a_pair_is_dropped_where_a_side_has_lost_a_call():
    """The rejected side would be compared with half a chosen one."""
    short, long = said("a"), said(" ".join(["again"] * 200))
    method = DPO(DPOConfig(model="tiny", train_file="unused"))
    builder = CallBuilder(load_template("tiny"), max_length=100)
    found = method.examples([pair_of([short, long], [short]), pair_of([short], [said("b")])], builder)
    assert [example.place for example in found.examples] == ["records:2"]
    assert found.rows.dropped == {"side_incomplete": 1}


def test_the_sides_of_a_pair_are_the_sums_of_their_calls():
    calls = [Call(prompt_ids=[1], completion_ids=ids) for ids in ([2], [3], [4])]
    pair = Preference(calls, cluster=0, num_chosen=2, reason="loop")
    policy = [torch.tensor([-1.0]), torch.tensor([-2.0]), torch.tensor([-4.0])]
    reference = [torch.tensor([-2.0]), torch.tensor([-2.0]), torch.tensor([-3.0])]
    loss, metrics = DPO(DPOConfig(train_file="pairs.jsonl", beta=0.5)).loss([pair], [policy], [reference], 2.0)
    # The chosen side gained 1 on its reference, the rejected side lost 1.
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5 * 2)) / 2)
    assert metrics["margin"].value == metrics["margin/loop"].value == pytest.approx(0.5 * 2)


def test_each_of_several_pairs_has_its_own_sides():
    one, two = (Preference([Call(prompt_ids=[1], completion_ids=[2])] * 2, num_chosen=1, reason=r) for r in "ab")
    policy = [[torch.tensor([-1.0]), torch.tensor([-2.0])], [torch.tensor([-5.0]), torch.tensor([-4.0])]]
    reference = [[torch.tensor([-2.0]), torch.tensor([-2.0])] for _ in policy]
    method = DPO(DPOConfig(train_file="pairs.jsonl", beta=0.5))
    loss, metrics = method.loss([one, two], policy, reference, 2.0)
    assert [metrics[f"margin/{reason}"].value for reason in "ab"] == [0.5 * 1, 0.5 * (-3 + 2)]
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(0.5))) / 2)
