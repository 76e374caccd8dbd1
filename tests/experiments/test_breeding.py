"""The settings of selection and mutation in the next generation's members."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bough.experiments.evolve_settings import EvolveConfig, own_values
from bough.experiments.generation import (
    OPTIMIZER,
    Generation,
    Place,
    Score,
    Used,
    breed,
    founders,
    mutated,
    ranked,
    select,
    writing,
)
from tests.experiments.adapters import adapter
from tests.experiments.small import config

DRAWS = 2000
FOUR = {name: Score({"task": mean}) for name, mean in {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.1}.items()}


def test_the_fittest_is_first_and_ties_go_by_name():
    assert ranked({name: Score({"task": mean}) for name, mean in {"b": 0.5, "a": 0.5, "c": 0.9}.items()}) == list("cab")
    assert ranked({"a": Score({}), "b": Score({"task": float("nan")}), "c": Score({"task": 0.0})})[0] == "c"


@pytest.mark.parametrize(("size", "wins"), [(1, [4, 4, 4, 4]), (2, [16 - 9, 9 - 4, 4 - 1, 1])])
def test_a_tournament_is_won_as_often_as_its_definition_says(tmp_path: Path, size: int, wins: list[int]):
    # Of k members drawn with replacement from N, the one of place i wins with ((N-i+1)^k - (N-i)^k) / N^k.
    settings, found = config(tmp_path, tournament_size=size, elitism=False), Counter[str]()
    for number in range(DRAWS // 4):
        places = select(settings, FOUR, number)
        assert len(places) == 4 and not any(place.lives for place in places)
        found.update(place.member for place in places)
    assert all(abs(found[name] / DRAWS - count / 16) < 0.04 for name, count in zip(FOUR, wins, strict=True))


def test_the_elite_lives_on_and_halving_keeps_the_better_half(tmp_path: Path):
    places = select(config(tmp_path), FOUR, 0)
    assert places[0] == Place("a", lives=True) and [place.lives for place in places[1:]] == [False] * 3
    halved = config(tmp_path, halving=True, generations=5)
    assert select(halved, FOUR, 0) == [Place("a", lives=True), Place("b", lives=True)]
    assert select(halved, {"a": FOUR["a"]}, 0) == [Place("a", lives=True)]


def test_children_inherit_everything_but_what_mutates_and_members_live_on_bit_for_bit(tmp_path: Path):
    settings = config(tmp_path)
    with writing(tmp_path / "checkpoints", 0, trained=True, used=Used()) as draft:
        for seed, name in enumerate("ab"):
            adapter(draft / name, seed, settings=own_values(settings))
    before = Generation.read(tmp_path / "checkpoints" / "generation-00000-trained")
    after = breed(settings, before, [Place("b", lives=True), *[Place("a", lives=False)] * 4])
    assert after.members == ["b", "g1-1", "g1-2", "g1-3", "g1-4"]
    for name in after.members:
        parent = "b" if name == "b" else "a"
        for file in ("adapter_model.safetensors", OPTIMIZER, *(["member.json"] if name == "b" else [])):
            assert (after.folder(name) / file).read_bytes() == (before.folder(parent) / file).read_bytes()
    child, parent = after.individual("g1-1"), before.individual("a")
    assert (child.parent, child.born, child.step, child.rank, child.optimizer) == ("a", 1, 3, 2, parent.optimizer)
    assert len({tuple(one.settings.values()) for one in after.individuals().values()}) > 2


def children(settings: EvolveConfig) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rng = random.Random(1)
    return [mutated(settings, own_values(settings), rng) for _ in range(DRAWS)]


def test_kinds_and_settings_come_with_their_probabilities(tmp_path: Path):
    ranges = {"learning_rate": "1e-4..1e-2", "loss_type": ["sigmoid", "ipo", "hinge"]}
    settings = config(tmp_path, no_mutation=1.0, hyper_parameter=3.0, mutate=ranges)
    start, found = own_values(settings), Counter[str]()
    for own, mutation in children(settings):
        changed = [name for name in start if own[name] != start[name]]
        assert changed == ([mutation["setting"]] if mutation["kind"] == "hyper_parameter" else [])
        if changed:
            assert (mutation["before"], mutation["after"]) == (start[changed[0]], own[changed[0]])
        found.update(changed or [mutation["kind"]])
    assert abs(found["no_mutation"] / DRAWS - 1 / 4) < 0.04
    assert abs(found["learning_rate"] - found["loss_type"]) / DRAWS < 0.06
    neither = config(tmp_path, no_mutation=0.0, hyper_parameter=0.0)
    assert {mutation["kind"] for _, mutation in children(neither)} == {"no_mutation"}


@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_values_are_resampled_with_the_probability_that_is_set(tmp_path: Path, probability: float):
    rates = {"mutate": {"learning_rate": "1e-4..1e-2"}, "no_mutation": 0.0}
    found = children(config(tmp_path, **rates, resample_probability=probability))
    factors = [round(own["learning_rate"] / 1e-3, 9) for own, _ in found]
    # By a factor there are two values, of the whole range many.
    assert abs(sum(factor not in (0.8, 1.2) for factor in factors) / DRAWS - probability) < 0.04


def test_settings_that_are_not_valid_together_are_drawn_again(tmp_path: Path):
    # A hinge is not smoothed.
    ranges = {"label_smoothing": [0.0, 0.1], "loss_type": ["sigmoid", "hinge"]}
    settings = config(tmp_path, no_mutation=0.0, population_size=64, mutate=ranges)
    drawn = {tuple(one.settings.values()) for one in founders(settings, rank=2)}
    assert drawn == {(0.0, "sigmoid"), (0.1, "sigmoid"), (0.0, "hinge")}
    rng, smoothed = random.Random(1), {"label_smoothing": 0.1, "loss_type": "sigmoid"}
    assert all(mutated(settings, smoothed, rng)[0]["label_smoothing"] == 0.0 for _ in range(50))


def test_first_settings_are_drawn_from_the_whole_ranges_but_for_one_member(tmp_path: Path):
    settings = config(
        tmp_path, population_size=128, mutate={"learning_rate": "1e-6..1e-2", "loss_type": ["sigmoid", "ipo"]}
    )
    first, *drawn = (one.settings for one in founders(settings, rank=2))
    assert first == own_values(settings) == {"learning_rate": 1e-3, "loss_type": "sigmoid"}
    assert {one["loss_type"] for one in drawn} == {"sigmoid", "ipo"}
    assert min(one["learning_rate"] for one in drawn) < 1e-5 and max(one["learning_rate"] for one in drawn) > 2e-3
    same = founders(config(tmp_path, population_size=3, initial="same"), rank=2)
    assert len({str(one.settings) for one in same}) == 1 and {one.rank for one in same} == {2}
