"""Merged and grown adapters, as files and as numbers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import bough
from bough.errors import InputError
from bough.experiments.breeding import bear, cross, merged
from bough.experiments.evolve import evolve
from bough.experiments.generation import OPTIMIZER, Individual
from bough.files import read_json, write_json
from bough.policy.adapters import AdapterWeights, LoraPair
from tests.experiments.adapters import PREFIX, adapter
from tests.experiments.small import config


def product(pair: LoraPair) -> torch.Tensor:
    return pair.up_OR @ pair.down_RI


def product_in(folder: Path) -> torch.Tensor:
    return product(AdapterWeights.read(folder).layers["layer.q_proj"])


def test_an_adapter_of_larger_rank_computes_the_same(tmp_path: Path):
    adapter(tmp_path / "parent", 1)
    bear(tmp_path / "parent", tmp_path / "child", Individual("child", born=1, parent="parent", rank=4))
    assert torch.allclose(product_in(tmp_path / "child"), product_in(tmp_path / "parent"), atol=1e-7)
    weights = load_file(tmp_path / "child" / "adapter_model.safetensors")
    assert weights[f"{PREFIX}.lora_A.weight"].shape == (4, 6) and weights[f"{PREFIX}.lora_A.weight"][2:].abs().min() > 0
    assert weights[f"{PREFIX}.lora_B.weight"].shape == (5, 4) and not weights[f"{PREFIX}.lora_B.weight"][:, 2:].any()
    child = Individual.read(tmp_path / "child")
    assert (child.rank, child.step, child.optimizer) == (4, 3, {"kind": "AdamW"})


def test_an_adapter_with_another_scale_than_alpha_over_r_is_not_grown_or_merged(tmp_path: Path):
    [agent] = bough.PreferenceAgent.population("tiny", 1, lora_r=2, lora_target_modules=["q_proj"])
    file = agent.save_checkpoint(tmp_path / "start") / "adapter_config.json"
    write_json(file, {**read_json(file), "use_rslora": True})
    for change in ("rank_mutation", "crossover"):
        with pytest.raises(InputError, match="use_rslora cannot be grown or merged"):
            evolve(config(tmp_path, model=str(tmp_path / "start"), set={}, **{change: 0.5}))


def test_moments_of_8_bits_are_not_grown(tmp_path: Path):
    with pytest.raises(InputError, match="rank_mutation needs optimizer adamw"):
        config(tmp_path, rank_mutation=0.5, set={"optimizer": "adamw_8bit"})


def test_the_moments_of_new_entries_are_zero_and_the_mean_of_the_others(tmp_path: Path):
    adapter(tmp_path / "parent", 1)
    bear(tmp_path / "parent", tmp_path / "child", Individual("child", rank=4))
    before, after = (load_file(tmp_path / name / OPTIMIZER) for name in ("parent", "child"))
    assert after["0.exp_avg"].shape == (4, 6) and not after["0.exp_avg"][2:].any()
    assert torch.allclose(after["1.exp_avg_sq"][:, 2:], before["1.exp_avg_sq"].mean())
    assert torch.equal(after["1.exp_avg_sq"][:, :2], before["1.exp_avg_sq"]) and float(after["0.step"]) == 3.0


def test_the_average_is_the_best_approximation_of_the_mean_of_the_products(tmp_path: Path):
    adapter(tmp_path / "one", 1)
    adapter(tmp_path / "two", 2, rank=3, alpha=9)
    cross(tmp_path / "one", tmp_path / "two", tmp_path / "child", Individual("child", rank=2), "average")
    mean = (product_in(tmp_path / "one") + product_in(tmp_path / "two")) / 2
    u, s, v = torch.linalg.svd(mean)
    assert torch.allclose(product_in(tmp_path / "child"), u[:, :2] * s[:2] @ v[:2], atol=1e-5)
    assert not (tmp_path / "child" / OPTIMIZER).exists() and Individual.read(tmp_path / "child").optimizer == {}


@pytest.mark.parametrize("how", ["average", "ties"])
def test_an_adapter_merged_with_its_own_copy_stays_what_it_was_as_far_as_the_method_allows(tmp_path: Path, how: str):
    weights = adapter(tmp_path / "one", 1).layers
    found = product(merged(weights, weights, how)["layer.q_proj"])  # type: ignore[arg-type]
    wanted = product(weights["layer.q_proj"])
    if how == "ties":  # a fifth of the 30 entries is kept
        wanted = wanted.where(wanted.abs() >= wanted.abs().flatten().sort().values[-6], 0.0)
        u, s, v = torch.linalg.svd(wanted)
        wanted = u[:, :2] * s[:2] @ v[:2]
    assert torch.allclose(found, wanted, atol=1e-5)


def test_ties_averages_only_entries_of_the_winning_sign():
    eye = torch.eye(5)
    one, other = torch.zeros(5, 5), torch.zeros(5, 5)
    one[0, 0], one[1, 1], one[2, 2] = 4.0, 3.0, 2.0
    other[0, 0], other[1, 1], other[2, 2] = -1.0, 5.0, -2.5
    pairs = [{"a": LoraPair(eye, matrix)} for matrix in (one, other)]
    found = product(merged(*pairs, "ties")["a"]).diagonal()
    # 4 against -1: 4; 3 and 5: their mean; 2 against -2.5: -2.5.
    assert torch.allclose(found, torch.tensor([4.0, 4.0, -2.5, 0.0, 0.0]), atol=1e-4)


def test_a_layer_that_the_other_parent_lacks_is_halved():
    pair = LoraPair(torch.ones(1, 3), torch.ones(2, 1))
    assert torch.allclose(product(merged({"a": pair}, {}, "average")["a"]), torch.full((2, 3), 0.5), atol=1e-6)
