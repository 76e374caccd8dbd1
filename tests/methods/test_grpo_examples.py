import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.chat.template import CallBuilder, load_template
from bough.data.writer import Writer
from bough.errors import InputError, RowError
from bough.ledger import Ledger
from bough.methods.grpo import GRPO, GRPOConfig, OnlineGRPO
from bough.training.method import CallSource, GroupExample
from bough.types import Call, Group, Message, Task, Trajectory, Turn

HI = [Message(role="user", content="Hi")]
REPLY = Message(role="assistant", content="x")


def attempt(reward: float | None, *steps: float | None) -> Trajectory:
    turns = [Turn(reply=REPLY, reward=step) for step in steps]
    return Trajectory(id="a", task=Task(id="t"), start=HI, turns=turns, rewards={"reward": reward})


def advantages(*attempts: Trajectory, **settings: Any) -> list[list[float | None]]:
    config = GRPOConfig(train_file=Path("a"), normalise=False, **settings)
    return GRPO(config).advantages(Group(task=Task(id="t"), attempts=list(attempts)))


def test_every_turn_of_an_attempt_has_its_advantage():
    assert advantages(attempt(1.0, None, None), attempt(0.0, None)) == [[0.5, 0.5], [-0.5]]


def test_an_attempt_that_was_not_scored_is_kept_out_of_the_baseline():
    assert advantages(attempt(1.0, None), attempt(None, None), attempt(0.0, None)) == [[0.5], [None], [-0.5]]


@pytest.mark.parametrize(("formula", "punished"), [({}, [-0.75, -0.25]), ({"step_formula": "seed"}, [-0.25, -0.75])])
def test_better_steps_are_punished_more_only_by_the_seeds_formula(formula: dict[str, Any], punished: list[float]):
    good, bad = advantages(attempt(1.0, 0.2, 0.6), attempt(0.0, 0.2, 0.6), advantage="step", **formula)
    assert good == pytest.approx([0.25, 0.75]) and bad == pytest.approx(punished)


def test_what_an_attempts_reward_has_beyond_its_turns_is_on_the_last():
    # The turns' rewards become 0.1, 0.9 and 0.1, −0.1: returns of 1, 0.9 and 0, −0.1.
    good, bad = advantages(attempt(1.0, 0.1, 0.1), attempt(0.0, 0.1, 0.1), advantage="turn")
    assert good == pytest.approx([0.5, 0.5]) and bad == pytest.approx([-0.5, -0.5])
    # Where the world's reward is the sum of its turns' nothing is beyond: returns of 1, 0 and 1, 1.
    assert advantages(attempt(1.0, 1.0, 0.0), attempt(1.0, 0.0, 1.0), advantage="turn") == [[0.0, -0.5], [0.0, 0.5]]


def test_an_attempt_whose_reward_cannot_be_told_is_not_scored_by_its_turns():
    played = (attempt(1.0, 1.0), attempt(None, 5.0), attempt(0.0, 0.0))
    assert advantages(*played, advantage="turn") == [[0.5], [None], [-0.5]]


def test_a_group_with_rewards_of_turns_alone_can_be_trained():
    attempts = [attempt(None, step).model_copy(update={"rewards": {}}) for step in (1.0, 0.0)]
    source = CallSource(CallBuilder(load_template("tiny")), Ledger("calls"))
    config = GRPOConfig(train_file=Path("a"), normalise=False, advantage="turn")
    example = GRPO(config).example(Group(task=Task(id="t"), attempts=attempts), source)
    assert example.advantages == (0.5, -0.5) and example.reward is None


def with_calls(attempt: Trajectory, *lengths: int, untrained: int = -1) -> Trajectory:
    """The attempt with a recorded call of each length; its tokens name the turn."""
    decode = load_template("tiny").tokenizer.decode
    calls = [
        Call(prompt_ids=[3] * (t + 1), completion_ids=[40 + t] * n, text=decode([40 + t] * n))
        for t, n in enumerate(lengths)
    ]
    turns = [
        turn.model_copy(update={"call": call, "trained": t != untrained})
        for t, (turn, call) in enumerate(zip(attempt.turns, calls, strict=True))
    ]
    return attempt.model_copy(update={"turns": turns})


def made(*attempts: Trajectory, **settings: Any) -> GroupExample:
    config = GRPOConfig(**{"train_file": Path("a"), "normalise": False} | settings)
    source = CallSource(CallBuilder(load_template("tiny")), Ledger("calls"))
    return GRPO(config).example(Group(task=Task(id="t"), attempts=list(attempts)), source)


def test_every_call_gets_the_advantage_of_its_own_turn():
    # Returns of 1, 1, 0 and 0, 0, 0: from the third turn on nothing is at stake.
    good, bad = attempt(1.0, 0.0, 1.0, 0.0), attempt(0.0, 0.0, 0.0, 0.0)
    example = made(with_calls(good, 1, 1, 1), with_calls(bad, 1, 1, 1), advantage="turn")
    assert [call.completion_ids for call in example.calls] == [[40], [41], [42]] * 2
    assert example.advantages == (0.5, 0.5, 0.0, -0.5, -0.5, 0.0)
    # A turn that is not trained does not shift the advantages of the others.
    example = made(with_calls(good, 1, 1, 1, untrained=1), with_calls(bad, 1, 1, 1, untrained=0), advantage="turn")
    assert [call.completion_ids for call in example.calls] == [[40], [42], [41], [42]]
    assert example.advantages == (0.5, 0.0, -0.5, 0.0)


def test_the_mean_of_a_sequence_is_over_all_calls_of_an_attempt():
    example = made(
        with_calls(attempt(1.0, None, None), 3, 5), with_calls(attempt(0.0, None), 4), averaging="sequence_mean"
    )
    assert example.weights == (1 / 8, 1 / 8, 1 / 4) and example.denominator == 2
    by_token = made(with_calls(attempt(1.0, None, None), 3, 5), with_calls(attempt(0.0, None), 4))
    assert by_token.weights == (1.0, 1.0, 1.0) and by_token.denominator == 12
    attempts = with_calls(attempt(1.0, None, None), 3, 5), with_calls(attempt(0.0, None), 4)
    by_constant = made(*attempts, averaging="constant_length", constant_length=16)
    assert by_constant.weights == (1 / 16,) * 3 and by_constant.denominator == 2


def test_parts_keep_what_belongs_to_each_call():
    example = made(with_calls(attempt(1.0, 0.0, 1.0), 1, 2), with_calls(attempt(0.0, 0.0, 0.0), 3, 4), advantage="turn")
    old = tuple(torch.full((n,), -float(n)) for n in (1, 2, 3, 4))
    parts = GRPO(GRPOConfig(train_file=Path("a"))).parts(replace(example, old_logprobs=old))
    assert [part.calls for part in parts] == [[call] for call in example.calls]
    assert [part.advantages for part in parts] == [(value,) for value in example.advantages]
    assert [part.old_logprobs[0].tolist() for part in parts] == [value.tolist() for value in old]


def test_the_loss_takes_each_calls_advantage_weight_and_start():
    """Off-policy with a reference: every number of the sum is another one."""
    config = GRPOConfig(train_file=Path("a"), kl_coef=0.5)
    calls = [Call(prompt_ids=[3], completion_ids=[4]), Call(prompt_ids=[3], completion_ids=[5, 6])]
    example = GroupExample(calls=calls, advantages=(1.0, -1.0), weights=(0.5, 0.25), denominator=2.0)
    parts = GRPO(config).parts(example)
    now = [[torch.tensor([-1.0])], [torch.tensor([-2.0, -3.0])]]
    start = [[torch.tensor([-1.1])], [torch.tensor([-2.0, -2.9])]]
    up, down = math.exp(0.1), math.exp(-0.1)
    kl_first, kl_last = math.expm1(-0.1) + 0.1, math.expm1(0.1) - 0.1
    offline = GRPO(config).loss(parts, now, start, 2.0).value.item()
    assert offline == pytest.approx(-(0.5 * (up - kl_first / 2) + 0.25 * (-1 - down - kl_last / 2)) / 2, abs=1e-6)
    # Where the groups were just played, the policy is where it was; the reference only holds it back.
    online = OnlineGRPO(config).loss(parts, now, start, 2.0).value.item()
    assert online == pytest.approx(-(0.5 * (1 - kl_first / 2) + 0.25 * (-2 - kl_last / 2)) / 2, abs=1e-6)


def test_a_reference_is_needed_offline_or_for_a_divergence():
    without, held = GRPOConfig(train_file=Path("a")), GRPOConfig(train_file=Path("a"), kl_coef=0.1)
    assert GRPO(without).needs_reference and GRPO(held).needs_reference
    assert OnlineGRPO(held).needs_reference
    assert not OnlineGRPO(without).needs_reference


def test_a_call_without_sampled_log_probabilities_is_not_corrected_and_spoils_no_other():
    method = OnlineGRPO(GRPOConfig(train_file=Path("a")))
    # On-policy the ratio is 1; the first call's token is 1.5 times as likely as the sampler says.
    calls = [Call(prompt_ids=[3], completion_ids=[4], logprobs=[-2.0]), Call(prompt_ids=[3], completion_ids=[5, 6])]
    parts = method.parts(GroupExample(calls=calls, advantages=(1.0, -1.0), weights=(1.0, 1.0), denominator=3.0))
    now = [[torch.tensor([-2.0]) + torch.tensor(1.5).log()], [torch.tensor([-1.0, -3.0])]]
    loss = method.loss(parts, now, None, 3.0)
    assert loss.value.item() == pytest.approx(-(1.5 - 1 - 1) / 3)


def test_sampled_log_probabilities_at_another_temperature_correct_nothing():
    """A server's are at temperature 1, whatever the tokens were sampled at."""
    calls = [
        Call(prompt_ids=[3], completion_ids=[4], logprobs=[-2.0], logprobs_temperature=0.7, temperature=0.7),
        Call(prompt_ids=[3], completion_ids=[5], logprobs=[-2.0], temperature=0.7),
    ]
    now = [[torch.tensor([-2.0]) + torch.tensor(1.5).log()]] * 2
    for temperature, expected in ((0.7, 1.5 + 1), (1.0, 1 + 1.5)):
        method = OnlineGRPO(GRPOConfig(train_file=Path("a"), temperature=temperature))
        parts = method.parts(GroupExample(calls=calls, advantages=(1.0, 1.0), weights=(1.0, 1.0), denominator=2.0))
        assert method.loss(parts, now, None, 2.0).value.item() == pytest.approx(-expected / 2)


def sampled_at(*temperatures: float | None) -> list[Trajectory]:
    call = Call(prompt_ids=[3], completion_ids=[4], text=load_template("tiny").tokenizer.decode([4]))
    turns = [Turn(reply=REPLY, call=call.model_copy(update={"temperature": value})) for value in temperatures]
    return [attempt(float(n)).model_copy(update={"turns": [turn]}) for n, turn in enumerate(turns)]


def read_groups(folder: Path, temperature: float, *sampled: float | None) -> int:
    file = folder / "groups.jsonl"
    file.unlink(missing_ok=True)
    with Writer(file) as writer:
        writer.write(Group(task=Task(id="t"), attempts=sampled_at(*sampled)))
    config = GRPOConfig(train_file=file, temperature=temperature)
    return len(GRPO(config).examples(file, CallBuilder(load_template("tiny"))).examples)


def test_groups_on_file_are_trained_at_the_temperature_they_were_sampled_at(tmp_path: Path):
    for number, sampled in enumerate([(0.7, 0.7), (0.7, None), (0.7, 0.0)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert read_groups(folder, 0.7, *sampled) == 1, "greedy and unknown replies are of no temperature"
    with pytest.raises(InputError, match=r"sampled at temperature 0.7, but temperature is 1; give theirs with --temp"):
        read_groups(tmp_path, 1.0, 0.7, 0.7)


def test_a_group_with_nothing_to_tell_apart_is_dropped_with_its_reason():
    with pytest.raises(RowError) as error:
        advantages(attempt(1.0, None), attempt(1.0, None))
    assert error.value.reason == "zero_variance"
