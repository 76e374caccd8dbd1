"""Preference data in batches, agents that learn and are tested on it, and an evolution on it."""

from pathlib import Path

import pytest

import bough
from tests.experiments.small import SETTINGS, pairs, pairs_file

SMALL = {key: value for key, value in SETTINGS["set"].items() if key != "batch_size"}


def test_batches_pass_over_the_training_pairs_and_never_show_the_held_out_ones():
    gym = bough.PreferenceGym(pairs(), test_size=0.25, batch_size=5)
    assert (len(gym), len(gym.test_dataset)) == (12, 4)
    epoch = [gym.reset(), gym.step(), gym.step()]
    assert [len(batch) for batch in epoch] == [5, 5, 2]
    shown = sorted(pair.task.id for batch in epoch for pair in batch)
    assert shown == sorted(pair.task.id for pair in gym.train_dataset)
    assert not set(shown) & {pair.task.id for pair in gym.test_dataset}
    again = gym.step()
    assert gym.num_epochs == 1 and [one.task.id for one in again] != [one.task.id for one in epoch[0]]
    with gym.eval_mode():
        assert gym.reset() == gym.test_dataset and len(gym) == 4


def test_pairs_of_one_prompt_are_on_one_side_of_the_split():
    twice = [pair.model_copy(update={"task": pair.task.model_copy(update={"id": name})})
             for pair in pairs(8) for name in (pair.task.id, f"{pair.task.id} again")]  # fmt: skip
    gym = bough.PreferenceGym(twice, test_size=0.25)
    held_out, rest = ({pair.start[0].content for pair in some} for some in (gym.test_dataset, gym.train_dataset))
    assert (len(held_out), len(rest), len(gym.test_dataset)) == (2, 6, 4) and not held_out & rest


def test_an_epoch_counts_when_it_is_over_also_without_a_reset():
    gym = bough.PreferenceGym(pairs(4), pairs(1), batch_size=2)
    counts = []
    for _ in range(5):
        gym.step()
        counts.append(gym.num_epochs)
    assert counts == [0, 0, 1, 1, 2]


def test_two_gyms_with_one_seed_have_the_same_split(tmp_path: Path):
    one, other = bough.PreferenceGym(pairs_file(tmp_path)), bough.PreferenceGym(pairs())
    assert [pair.task.id for pair in one.test_dataset] == [pair.task.id for pair in other.test_dataset]
    with pytest.raises(bough.InputError, match="too few to hold out"):
        bough.PreferenceGym(pairs(1))


def test_agents_learn_from_batches_and_are_tested_on_the_held_out_pairs():
    gym = bough.PreferenceGym(pairs(), test_size=0.25, batch_size=4)
    first, second = bough.PreferenceAgent.population("tiny", 2, **{**SMALL, "learning_rate": 0.02})
    batch = gym.reset()
    before = first.learn(batch, training=False)
    assert before["mean_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert first.test(gym) == 0.0  # no side is preferred yet
    for _ in range(6):
        learnt = first.learn(batch)
    assert learnt["mean_loss"] < before["mean_loss"]
    assert learnt["mean_chosen_reward"] > learnt["mean_rejected_reward"]
    known = bough.PreferenceGym(pairs(), batch)
    assert first.test(known) >= 0.75 and second.test(known) == 0.0
    assert second.learn(batch, training=False)["mean_loss"] == pytest.approx(0.6931, abs=1e-3)
    clone = first.clone("clone", beta=0.3)
    assert clone.config.beta == 0.3 and clone.test(known) == first.test(known)
    # One more update of both: moments and weights are the same, the loss has another β.
    assert clone.learn(batch)["mean_loss"] < first.learn(batch)["mean_loss"]


def test_a_clone_learns_without_changing_the_optimizer_state_of_its_original():
    [first] = bough.PreferenceAgent.population("tiny", 1, **SMALL)
    first.learn(pairs(4))
    state = first._trainer.training[first.name].updater.optimizer.state
    before = [{key: tensor.clone() for key, tensor in values.items()} for values in state.values()]
    first.clone("clone").learn(pairs(8)[4:])
    for values, old in zip(state.values(), before, strict=True):
        assert all((values[key] == old[key]).all() for key in old)


def test_dpo_is_evolved_on_a_preference_gym(tmp_path: Path):
    gym = bough.PreferenceGym(pairs_file(tmp_path), test_size=0.25)
    small = {key: SETTINGS[key] for key in ("set", "mutate", "seed")}
    found = bough.evolve("tiny", gym, population_size=2, generations=2, steps=1, **small)
    assert found.report["metric"] == "accuracy" and found.report["selected"]["tasks"] == 2  # half of the four held out
    assert {line["generation"] for line in found.lineage} == {0, 1} and (found.path / "adapter_config.json").exists()
    assert found.report["winner"]["name"] in repr(found)
