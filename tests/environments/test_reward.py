from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bough.environments.rubric import Rubric, scores_groups
from bough.errors import InputError
from bough.types import Trajectory


def one(trajectory: Trajectory, *, base: int = 2) -> float:
    return float(base)


def annotated(group: list[Trajectory]) -> list[float]:
    return [0.0 for _ in group]


def sequence(group: Sequence[Trajectory]) -> list[float]:
    return [0.0 for _ in group]


def named(attempts) -> list[float]:  # type: ignore[no-untyped-def]
    return [0.0 for _ in attempts]


class Judge:
    def __call__(self, attempts: list[Trajectory]) -> list[float]:
        return [0.0 for _ in attempts]


@pytest.mark.parametrize("function", [annotated, sequence, named, Judge()])
def test_a_function_of_a_list_or_of_attempts_scores_groups(function: Any):
    assert scores_groups(function) and not scores_groups(one)


def test_a_reward_goes_by_its_functions_name():
    assert [part.name for part in Rubric([one, Judge()]).parts] == ["one", "Judge"]
    with pytest.raises(InputError, match="define it with def"):
        Rubric([lambda trajectory: 0.0])
