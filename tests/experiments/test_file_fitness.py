"""Fitness on held-out records, compared with what the saved adapters give for the same records."""

from pathlib import Path
from statistics import fmean

import pytest
import torch

from bough.config.run_folder import MetricsFile
from bough.experiments.evolve import Evolved, evolve
from bough.methods.sft import SFT, SFTConfig
from bough.policy.load import load_call_builder
from bough.policy.policy import Policy
from bough.types import Message, Task, Trajectory
from tests.experiments.small import SETTINGS, WORDS, config, say

TRAIN, SELECTION, TEST = (range(0, 6), range(6, 10), range(10, 13))


def demonstrations(numbers: range) -> list[Trajectory]:
    """A word is asked for and written."""
    return [
        Trajectory(
            id=str(number),
            task=Task(id=str(number)),
            start=[Message(role="user", content=f"{number}: write {WORDS[number % 8]}")],
            turns=say(WORDS[number % 8]),
        )
        for number in numbers
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Evolved:
    """Members that learn demonstrations, some of them far too fast, selected by what is the default for SFT."""
    settings = {"method": "sft", "eval_file": "selection.jsonl", "test_file": "test.jsonl"}
    rates = {"set": {**SETTINGS["set"], "bf16": False}, "mutate": {"learning_rate": "1e-6..3"}}
    given = config(tmp_path_factory.mktemp("trained"), **settings, **rates, generations=2, steps=1)
    return evolve(given, *map(demonstrations, (TRAIN, SELECTION, TEST)))


def losses(adapter: Path, numbers: range) -> list[float]:
    """The mean negative log-likelihood of each demonstration's reply, by the model in `adapter` on its own."""
    builder = load_call_builder("tiny", None, max_length=None, stride=1)
    examples = SFT(SFTConfig(train_file=Path("a.jsonl"))).examples(demonstrations(numbers), builder).examples
    policy = Policy.load(str(adapter), dtype=torch.float32)
    logprobs = policy.logprobs([call for example in examples for call in example.calls])
    return [-float(one.detach().mean()) for one in logprobs]


def test_sft_is_selected_by_its_negative_loss_so_the_lowest_loss_wins(trained: Evolved):
    folder = trained.folder / "checkpoints" / "generation-00001-trained"
    last = [line for line in trained.lineage if line["generation"] == 1]
    found = {line["name"]: losses(folder / line["name"], SELECTION) for line in last}
    assert {line["name"]: line["fitness"] for line in last} == pytest.approx(
        {name: -fmean(values) for name, values in found.items()}, rel=1e-4
    )
    assert [line["name"] for line in last] == sorted(found, key=lambda name: fmean(found[name]))
    assert max(map(fmean, found.values())) > 1.01 * min(map(fmean, found.values()))
    assert trained.report["winner"]["name"] == min(found, key=lambda name: fmean(found[name]))


def test_the_winner_is_measured_on_the_test_records(trained: Evolved):
    found = {name: losses(trained.weights, numbers) for name, numbers in (("selected", SELECTION), ("untouched", TEST))}
    assert fmean(found["selected"]) != pytest.approx(fmean(found["untouched"]), rel=1e-2)
    for name, values in found.items():
        assert trained.report[name]["fitness"] == pytest.approx(-fmean(values), rel=1e-4)
        assert trained.report[name]["tasks"] == len(values)


def test_a_mean_loss_has_its_interval_in_lineage_report_and_metrics(trained: Evolved):
    for line in (*trained.lineage, trained.report["selected"], trained.report["untouched"]):
        low, high = line["interval"]
        assert low < line["fitness"] < high
    fittest = [line for line in trained.lineage if line["place"] == 1]
    measured = MetricsFile.read(trained.folder / "metrics.jsonl")
    assert [[one["fitness_low"], one["fitness_high"]] for one in measured] == [line["interval"] for line in fittest]


def test_losses_are_measured_with_the_settings_of_the_run_and_trained_with_those_of_the_member(tmp_path: Path):
    # The IPO loss of a model that prefers nothing yet is (1 / 2β)².
    rate = {**SETTINGS["set"], "learning_rate": 1e-9, "loss_type": "ipo", "beta": 0.25, "bf16": False}
    settings = {"metric": "loss", "set": rate, "mutate": {"beta": "0.1..1"}, "generations": 1, "steps": 1}
    found = evolve(config(tmp_path, **settings, population_size=3))
    assert [line["fitness"] for line in found.lineage] == pytest.approx([-4.0] * 3, rel=1e-4)
    betas = [line["settings"]["beta"] for line in found.lineage]
    assert len(set(betas)) == 3
    assert [line["loss"] for line in found.lineage] == pytest.approx([1 / (2 * beta) ** 2 for beta in betas], rel=1e-4)


def test_a_member_that_diverges_does_not_change_the_fitness_of_the_others(tmp_path: Path):
    settings = {"metric": "loss", "set": {**SETTINGS["set"], "bf16": False}, "generations": 1, "population_size": 3}
    # One update with the second rate makes weights with which no loss is finite.
    found = evolve(config(tmp_path, **settings, mutate={"learning_rate": [1e-3, 1e25]}))
    fitness = {line["settings"]["learning_rate"]: line["fitness"] for line in found.lineage}
    alone = evolve(config(tmp_path / "alone", **settings, mutate={"learning_rate": [1e-3, 2e-3]}))
    expected = next(line["fitness"] for line in alone.lineage if line["name"] == "g0-0")
    assert fitness == {1e-3: pytest.approx(expected, rel=1e-5), 1e25: None}
    assert (found.report["winner"]["name"], found.report["selected"]["fitness"]) == ("g0-0", fitness[1e-3])
