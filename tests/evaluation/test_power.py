import math

import numpy as np
import pytest

from bough.evaluation.paired import outlook, sign_flip, tasks_needed


def test_connors_formula_by_hand():
    """A difference of 0.1 with 0.3 of the tasks differing: 1.96 √0.3 + 0.8416 √0.29 = 1.5267; (1.5267 / 0.1)² = 233."""
    plain = ((1.959964 * math.sqrt(0.3) + 0.841621 * math.sqrt(0.29)) / 0.1) ** 2
    assert plain == pytest.approx(233.1, abs=0.1)
    corrected = plain / 4 * (1 + math.sqrt(1 + 4 / (plain * 0.1))) ** 2
    assert tasks_needed(0.1, 0.3) == math.ceil(corrected) == 253


def test_smaller_differences_and_stricter_tests_need_more():
    assert tasks_needed(0.05, 0.3) > 3 * tasks_needed(0.1, 0.3)
    assert tasks_needed(0.1, 0.3, alpha=0.01) > tasks_needed(0.1, 0.3) > tasks_needed(0.1, 0.15)


@pytest.mark.parametrize(("up", "down"), [(0.2, 0.1), (0.25, 0.05)])
def test_so_many_tasks_do_settle_it_four_times_in_five(up: float, down: float):
    tasks = tasks_needed(up - down, up + down)
    rng, runs = np.random.default_rng(0), 500
    found = sum(
        sign_flip(rng.choice([1.0, -1.0, 0.0], size=tasks, p=[up, down, 1 - up - down]).tolist()) < 0.05
        for _ in range(runs)
    )
    assert 0.76 < found / runs < 0.86


def test_the_outlook_follows_the_discordance_seen():
    found = outlook([1.0] * 9 + [-1.0] * 6 + [0.0] * 85)
    assert found.tasks == tasks_needed(0.03, 16 / 101) and 1_000 < found.tasks < 2_000
    assert found.detectable is not None and 0.09 < found.detectable < 0.16


def test_the_detectable_difference_is_the_one_that_needs_as_many_tasks():
    found = outlook([1.0] * 15 + [-1.0] * 15 + [0.0] * 70)
    assert found.tasks is None, "no difference was seen"
    assert found.detectable is not None
    assert tasks_needed(found.detectable, 31 / 101) == pytest.approx(100, abs=1)


def test_nothing_seen_is_not_nothing_to_come():
    assert 0.05 < (outlook([0.0] * 100).detectable or 0.0) < 0.15


def test_five_tasks_can_show_nothing_six_can():
    """Five differing tasks, all one way, are p = 2/32."""
    assert outlook([1.0] * 5).detectable is None and outlook([1.0] * 6).detectable is not None
