"""The settings of selection and mutation in the next generation's members."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bough.experiments.breeding import Place, breed, merged, mutator_of, select
from bough.experiments.evolve_settings import EvolveConfig, own_values, trained_by
from bough.experiments.generation import OPTIMIZER, Generation, Individual, Score, Used, writing
from bough.experiments.members import method_of
from bough.policy.adapters import AdapterWeights
from tests.experiments.adapters import adapter
from tests.experiments.small import config

NAMES = ("a", "b", "c", "d")
ONLY = {"no_mutation": 0.0, "hyper_parameter": 0.0}


def parents(folder: Path, settings: EvolveConfig) -> Generation:
    """A trained generation of two members."""
    with writing(folder, 0, trained=True, used=Used()) as draft:
        for seed, name in enumerate(NAMES[:2]):
            adapter(draft / name, seed)
            replace(Individual.read(draft / name), settings=own_values(settings)).write(draft / name)
    return Generation.read(folder / "generation-00000-trained")


def children(folder: Path, **changes: Any) -> list[Individual]:
    """Eight children of the first of two members."""
    settings = config(folder, **changes)
    scores = {"a": Score({"task": 1.0}), "b": Score({"task": 0.0})}
    before = parents(folder / "checkpoints", settings)
    return list(breed(settings, before, scores, [Place("a", lives=False)] * 8).individuals().values())


@pytest.mark.parametrize(
    ("changes", "tasks", "lives", "born"),
    [
        # The first of four places goes to the elite.
        ({"selection": "tournament"}, 40, "a", 3),
        ({"selection": "truncation"}, 40, "abc", 1),
        ({"selection": "truncation", "truncation": 0.5}, 40, "ab", 2),
        # On all tasks two members succeed and two fail.
        ({"selection": "confident"}, 40, "ab", 2),
        ({"selection": "confident"}, 4, "abcd", 0),
        ({"selection": "confident", "alpha": 1e-12}, 40, "abcd", 0),
        ({"halving": True, "generations": 5}, 40, "ab", 0),
    ],
)
def test_members_are_selected_as_the_settings_say(
    tmp_path: Path, changes: dict[str, Any], tasks: int, lives: str, born: int
):
    scores = {name: Score({str(task): float(name in "ab") for task in range(tasks)}) for name in NAMES}
    places = select(config(tmp_path, **changes), scores, 0)
    assert "".join(place.member for place in places if place.lives) == lives
    assert sum(not place.lives for place in places) == born


@pytest.mark.parametrize("how", ["average", "ties"])
def test_adapters_are_merged_by_the_method_that_is_set(tmp_path: Path, how: Any):
    found = children(tmp_path, **ONLY, crossover=1.0, crossover_method=how)
    checkpoints = tmp_path / "checkpoints"
    one, other = (AdapterWeights.read(checkpoints / "generation-00000-trained" / name).layers for name in "ab")
    wanted = merged(one, other, how)["layer.q_proj"]
    for child in found:
        assert child.mutation == {"kind": "crossover", "other_parent": "b"}
        made = AdapterWeights.read(checkpoints / "generation-00001" / child.name).layers["layer.q_proj"]
        assert torch.allclose(made.up_OR @ made.down_RI, wanted.up_OR @ wanted.down_RI, atol=1e-6)


@pytest.mark.parametrize("how", ["average", "ties"])
def test_a_child_is_like_its_parent_where_the_other_parent_has_diverged(tmp_path: Path, how: Any):
    settings = config(tmp_path, **ONLY, crossover=1.0, crossover_method=how)
    before = parents(tmp_path / "checkpoints", settings)
    file = before.folder("b") / "adapter_model.safetensors"
    save_file({name: 1e25 * tensor for name, tensor in load_file(file).items()}, file)  # their product is infinite
    scores = {"a": Score({"task": 1.0}), "b": Score({"task": 0.0})}
    after = breed(settings, before, scores, [Place("a", lives=False)])
    [child] = after.individuals().values()
    assert (child.parent, child.mutation) == ("a", {"kind": "no_mutation"})
    for name in ("adapter_model.safetensors", OPTIMIZER):
        assert (after.folder(child.name) / name).read_bytes() == (before.folder("a") / name).read_bytes()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_values_are_resampled_with_the_probability_that_is_set(tmp_path: Path, probability: float):
    rates = {"mutate": {"learning_rate": "1e-4..1e-2"}, "no_mutation": 0.0}
    found = children(tmp_path, **rates, resample_probability=probability)
    factors = {round(child.settings["learning_rate"] / 1e-3, 9) for child in found}
    # By a factor there are two values; of the whole range every child has one of its own.
    assert (factors <= {0.8, 1.2}) if probability == 0.0 else (len(factors - {0.8, 1.2}) == 8)


@pytest.mark.parametrize(("largest", "rank"), [(3, 2), (4, 4)])
def test_no_rank_grows_above_the_largest_that_is_set(tmp_path: Path, largest: int, rank: int):
    found = children(tmp_path, **ONLY, rank_mutation=1.0, max_rank=largest)
    assert {child.rank for child in found} == {rank}
    assert {str(child.mutation and child.mutation["kind"]) for child in found} == {
        "rank" if rank == 4 else "no_mutation"
    }


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("label_smoothing", {"set": {"label_smoothing": 0.1}}),
        ("nll_alpha", {"set": {"nll_alpha": 0.1}}),
        ("kl_coef", {"method": "grpo", "train_file": None, "environment": "household", "set": {"kl_coef": 0.1}}),
    ],
)
def test_smoothing_and_weights_in_the_loss_mutate(tmp_path: Path, setting: str, given: dict[str, Any]):
    settings = config(tmp_path, **given, mutate={setting: "0..0.4"})
    own, mutation = mutator_of(settings).hyper_parameter(own_values(settings), random.Random(1))
    assert (mutation.setting, mutation.before) == (setting, 0.1) and own[setting] in (0.1 * 0.8, 0.1 * 1.2)
    method: Any = method_of(trained_by(settings, own))
    assert getattr(method.config, setting) == own[setting]
