from pathlib import Path
from typing import Any

import pytest
import torch

from bough.calls.builder import CallBuilder
from bough.calls.template import load_template
from bough.config.training import GRPOConfig
from bough.errors import InputError, RowError
from bough.ledger import Ledger
from bough.stages.examples import CallSource
from bough.stages.grpo import Attempts, GRPOObjective, call_advantages, groups, make_attempts
from bough.trajectories.writer import Writer
from bough.types import Call, Group, Message, Task, Trajectory, Turn

HI = [Message(role="user", content="Hi")]
REPLY = Message(role="assistant", content="x")


def attempt(reward: float | None, *steps: float | None) -> Trajectory:
    turns = [Turn(reply=REPLY, reward=step) for step in steps]
    return Trajectory(id="a", task=Task(id="t"), start=HI, turns=turns, rewards={"reward": reward})


def advantages(*attempts: Trajectory, **settings: Any) -> list[list[float | None]]:
    config = GRPOConfig(train_file=Path("a"), normalise=False, **settings)
    return call_advantages(Group(task=Task(id="t"), attempts=list(attempts)), config)


def test_every_turn_of_an_attempt_has_its_advantage():
    assert advantages(attempt(1.0, None, None), attempt(0.0, None)) == [[0.5, 0.5], [-0.5]]


def test_an_attempt_that_was_not_scored_is_kept_out_of_the_baseline():
    assert advantages(attempt(1.0, None), attempt(None, None), attempt(0.0, None)) == [[0.5], [None], [-0.5]]


@pytest.mark.parametrize("settings", [{"advantage": "step"}, {"step_level_advantage": True}])
def test_better_steps_are_never_punished_more(settings: dict[str, Any]):
    good, bad = advantages(attempt(1.0, 0.2, 0.6), attempt(0.0, 0.2, 0.6), **settings)
    assert good == pytest.approx([0.25, 0.75])
    assert bad == pytest.approx([-0.75, -0.25])


def test_the_seeds_formula_is_taken_to_the_letter():
    good, bad = advantages(attempt(1.0, 0.2, 0.6), attempt(0.0, 0.2, 0.6), advantage="step", step_formula="seed")
    assert good == pytest.approx([0.25, 0.75])
    assert bad == pytest.approx([-0.25, -0.75])


def test_turns_without_rewards_get_the_outcome_on_the_last():
    assert advantages(attempt(1.0, None, None), attempt(0.0, None, None), advantage="turn") == [
        [0.5, 0.5],
        [-0.5, -0.5],
    ]


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
    example = make_attempts(Group(task=Task(id="t"), attempts=attempts), source, config)
    assert example.advantages == (0.5, -0.5) and example.reward is None


def test_a_call_without_sampled_log_probabilities_is_not_corrected_and_spoils_no_other():
    objective = GRPOObjective(GRPOConfig(train_file=Path("a")), online=True)
    # On-policy the ratio is 1; the first call's token is 1.5 times as likely as the sampler says.
    calls = [Call(prompt_ids=[3], completion_ids=[4], logprobs=[-2.0]), Call(prompt_ids=[3], completion_ids=[5, 6])]
    parts = objective.parts(Attempts(calls=calls, advantages=(1.0, -1.0), weights=(1.0, 1.0), denominator=3.0))
    now = [[torch.tensor([-2.0]) + torch.tensor(1.5).log()], [torch.tensor([-1.0, -3.0])]]
    loss = objective.loss(parts, now, None, 3.0)
    assert loss.value.item() == pytest.approx(-(1.5 - 1 - 1) / 3)


def test_sampled_log_probabilities_at_another_temperature_correct_nothing():
    """A server's are at temperature 1, whatever the tokens were sampled at."""
    calls = [
        Call(prompt_ids=[3], completion_ids=[4], logprobs=[-2.0], logprobs_temperature=0.7, temperature=0.7),
        Call(prompt_ids=[3], completion_ids=[5], logprobs=[-2.0], temperature=0.7),
    ]
    now = [[torch.tensor([-2.0]) + torch.tensor(1.5).log()]] * 2
    for temperature, expected in ((0.7, 1.5 + 1), (1.0, 1 + 1.5)):
        objective = GRPOObjective(GRPOConfig(train_file=Path("a"), temperature=temperature), online=True)
        parts = objective.parts(Attempts(calls=calls, advantages=(1.0, 1.0), weights=(1.0, 1.0), denominator=2.0))
        assert objective.loss(parts, now, None, 2.0).value.item() == pytest.approx(-expected / 2)


def sampled_at(*temperatures: float | None) -> list[Trajectory]:
    call = Call(prompt_ids=[3], completion_ids=[4], text=load_template("tiny").tokenizer.decode([4]))
    turns = [Turn(reply=REPLY, call=call.model_copy(update={"temperature": value})) for value in temperatures]
    return [attempt(float(n)).model_copy(update={"turns": [turn]}) for n, turn in enumerate(turns)]


def read_groups(folder: Path, temperature: float, *sampled: float | None) -> int:
    file = folder / "groups.jsonl"
    with Writer(file) as writer:
        writer.write(Group(task=Task(id="t"), attempts=sampled_at(*sampled)))
    config = GRPOConfig(train_file=file, temperature=temperature)
    return len(groups(config, CallBuilder(load_template("tiny"))).examples)


def test_groups_on_file_are_trained_at_the_temperature_they_were_sampled_at(tmp_path: Path):
    for number, sampled in enumerate([(0.7, 0.7), (0.7, None), (0.7, 0.0)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert read_groups(folder, 0.7, *sampled) == 1, "greedy and unknown replies are of no temperature"
    with pytest.raises(InputError, match=r"sampled at temperature 0.7, but temperature is 1; use --temperature 0.7"):
        read_groups(tmp_path, 1.0, 0.7, 0.7)


def test_groups_sampled_at_several_temperatures_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"sampled at several temperatures \(0.7, 1\)"):
        read_groups(tmp_path, 1.0, 0.7, 1.0)


def test_a_group_with_nothing_to_tell_apart_is_dropped_with_its_reason():
    with pytest.raises(RowError) as error:
        advantages(attempt(1.0, None), attempt(1.0, None))
    assert error.value.reason == "zero_variance"
