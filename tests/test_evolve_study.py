"""The study of `bough evolve`: its arms use as many tokens, and its table says by how much they differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.evolve_study import ARMS, WORLDS, Budget, arm_config
from benchmarks.evolve_study_table import Arm, table

from bough.evaluation.outcomes import Outcome
from bough.evaluation.results import ModelResult

WORLD = replace(WORLDS["household"], members=8, generations=5, steps=4)
# 8 members, 5 generations: 4 updates of 100 tokens and a measurement of 50 each.
BUDGET = Budget(tokens=8 * 5 * (4 * 100 + 50), update=100, measure=50)


@pytest.mark.parametrize(
    ("arm", "steps"),
    [
        ("fixed", 180),  # (18,000 - 50) / 100
        ("random", 22),  # (18,000 - 8 · 50) / 800
        ("halving", 7),  # 8, 4 and 2 members: (18,000 - 14 · 50) / (8 · 1 + 4 · 2 + 2 · 4) / 100
    ],
)
def test_every_arm_uses_up_the_budget(arm: str, steps: int):
    assert BUDGET.steps(WORLD, arm) == steps


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("arm", ARMS)
def test_the_settings_of_every_arm_are_valid(name: str, arm: str, tmp_path: Path):
    world = WORLDS[name]
    data: dict[str, Any] = {"model": "tiny"} | ({"train_file": "demos.jsonl"} if world.method == "sft" else {})
    config = arm_config(arm, world, 1, None if arm == "evolve" else BUDGET, tmp_path, **data)
    assert config.population.size == (1 if arm == "fixed" else world.members)
    assert config.population.halving == (arm == "halving") and not config.resume
    if arm != "halving":
        assert config.population.generations == (world.generations if arm == "evolve" else 1)


def arm(name: str, seed: int, wins: int) -> Arm:
    outcomes = [Outcome(task=f"{seed}-{n}", attempt=0, success=n < wins, digest=f"{n}") for n in range(10)]
    facts = {"arm": name, "seed": seed, "tokens": 100 if name == "evolve" else 90, "updates": 7, "shrinkage": 0.25}
    return Arm(facts, ModelResult(name=name, outcomes=outcomes))


def test_the_table_compares_every_arm_with_evolve_on_the_same_seeds():
    found = [arm("evolve", 0, 8), arm("evolve", 1, 6), arm("fixed", 0, 5)]
    first, second = (line.split(" | ") for line in table(found).splitlines()[2:4])
    assert first[0] == "| evolve" and first[1].startswith("70.0% (") and first[2] == "80.0 60.0"
    assert first[3:5] == ["", ""] and first[5:7] == ["200", "1.00"]
    assert second[1].startswith("50.0% (") and second[3].startswith("-30.0 (") and second[5:7] == ["90", "0.90"]
    assert table([]) == "No arm has finished."
