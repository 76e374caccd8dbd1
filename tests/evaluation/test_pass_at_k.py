from itertools import combinations

import pytest

from bough.evaluation.success import ladder, pass_all, pass_at


@pytest.mark.parametrize(("successes", "attempts"), [(0, 4), (1, 4), (2, 4), (4, 4), (3, 8)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_both_are_shares_of_all_choices_of_k(k: int, successes: int, attempts: int):
    ends = [True] * successes + [False] * (attempts - successes)
    choices = list(combinations(ends, k))
    assert pass_at(k, successes, attempts) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_all(k, successes, attempts) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_one_of_two_solved():
    assert (pass_at(1, 1, 2), pass_at(2, 1, 2), pass_all(2, 1, 2)) == (0.5, 1.0, 0.0)


def test_k_goes_as_far_as_every_task_does():
    assert ladder(8) == [2, 4, 8]
    assert ladder(6) == [2, 4, 6]
    assert ladder(3) == [2, 3]
    assert ladder(2) == [2]
    assert ladder(1) == ladder(0) == []
