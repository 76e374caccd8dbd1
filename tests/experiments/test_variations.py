from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.recipe import Recipe
from bough.experiments.sweep import SweepConfig, Variation, shifted, variations

RECIPE = "name: r\nseed: 3\nstages:\n  - collect: {environment: x, seed: 7}\n  - dpo: {beta: 1.0}\n"


def test_values_are_read_as_in_yaml():
    given = [
        "dpo.beta=1e-5,0.1",
        "pairs.kinds=[episode],[episode, parting]",
        "pairs.progress_margin=null,0.25",
        "a.b=on",
    ]
    assert SweepConfig(recipe="r", vary=given).vary == {
        "dpo.beta": [1e-5, 0.1],
        "pairs.kinds": [["episode"], ["episode", "parting"]],
        "pairs.progress_margin": [None, 0.25],
        "a.b": [True],
    }


@pytest.mark.parametrize("given", [["dpo.beta"], ["dpo.beta="], ["dpo.beta=[1"], ["dpo.beta=1", "dpo.beta=2"]])
def test_values_that_cannot_be_read_or_are_given_twice_are_named(given: list[str]):
    with pytest.raises(InputError, match=r"dpo\.beta"):
        SweepConfig(recipe="r", vary=given)


def test_all_combinations_have_all_seeds(tmp_path: Path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    found = variations(tmp_path / "r.yaml", {"dpo.beta": [0.1, 0.5], "model": ["a", "b"]}, 2, {"dpo.max_steps": 4})
    assert [(one.values["dpo.beta"], one.values["model"], one.seed) for one in found] == [
        (0.1, "a", 0), (0.1, "a", 1), (0.1, "b", 0), (0.1, "b", 1), (0.5, "a", 0), (0.5, "a", 1), (0.5, "b", 0),
        (0.5, "b", 1),
    ]  # fmt: skip
    assert found[3].recipe.stages[1] == {"dpo": {"beta": 0.1, "max_steps": 4}} and found[3].recipe.model == "b"
    assert found[3].label == "dpo.beta=0.1, model=b, seed 1"
    with pytest.raises(InputError, match="it asks for 1,002 runs; at most 1,000"):
        variations(tmp_path / "r.yaml", {"dpo.beta": [0.1, 0.5, 1]}, 334, {})
    with pytest.raises(InputError, match="is also given with --set"):
        variations(tmp_path / "r.yaml", {"dpo.beta": [0.1, 0.5]}, 1, {"dpo.beta": 1})


def test_a_seed_moves_all_seeds_and_leaves_the_recipe_alone():
    recipe = Recipe(
        seed=3, stages=[{"collect": {"seed": 7}}, {"repeat": {"stages": [{"eval": {"seed": 1}}, {"sft": {}}]}}]
    )
    moved = shifted(recipe, 2)
    assert moved.seed == 200_009
    stages = [{"eval": {"seed": 200_007}}, {"sft": {}}]
    assert moved.stages == [{"collect": {"seed": 200_013}}, {"repeat": {"stages": stages}}]
    assert shifted(recipe, 0) == recipe


def test_names_of_folders_differ_where_values_do():
    values = [0.1, 1, True, "a/b", "a-b", ["a", "b"], None, "x" * 200, "x" * 201]
    recipe = Recipe(stages=[{"eval": {}}])
    names = [Variation({"dpo.beta": value}, 0, recipe).name for value in values]
    assert names[0] == "dpo.beta-0.1-seed-0"
    assert len(set(names)) == len(values) and all(len(name) < 110 and "/" not in name for name in names)
