from collections import Counter
from typing import Any

import pytest

from bough.curation.pairs import balanced
from bough.ledger import Ledger
from bough.types import Pair, Task
from tests.curation.records import START, turn


def pairs(**counts: int) -> list[Pair]:
    return [
        Pair(task=Task(id=f"{reason}{i}"), start=START, chosen=[turn("a")], rejected=[turn("b")], reason=reason)
        for reason, count in counts.items()
        for i in range(count)
    ]


def left(given: list[Pair], seed: int = 0, **settings: Any) -> tuple[dict[str | None, int], Ledger]:
    ledger = Ledger("pairs")
    found = balanced(given, settings.get("caps", {}), settings.get("shares", {}), ledger, seed=seed)
    assert ledger.came_in == len(given) and ledger.kept == len(found)
    assert found == [pair for pair in given if pair in found], "in the order they came in"
    return dict(Counter(pair.reason for pair in found)), ledger


@pytest.mark.parametrize(
    ("settings", "counts", "dropped"),
    [
        ({}, {"loop": 20, "parting": 6}, {}),
        ({"caps": {"loop": 4}}, {"loop": 4, "parting": 6}, {"loop_over_its_cap": 16}),
        # Half of the whole for 20 loops beside 6 partings: 6 and 6. A quarter beside 6 others is 2.
        ({"shares": {"loop": 0.5}}, {"loop": 6, "parting": 6}, {"loop_over_its_share": 14}),
        ({"shares": {"loop": 0.25}}, {"loop": 2, "parting": 6}, {"loop_over_its_share": 18}),
    ],
)
def test_a_cap_is_a_count_and_a_share_is_of_what_is_left(settings: Any, counts: dict, dropped: dict):
    found, ledger = left(pairs(loop=20, parting=6), **settings)
    assert found == counts and ledger.dropped == dropped


def test_caps_go_before_shares():
    counts, ledger = left(pairs(loop=20, parting=9), caps={"parting": 3}, shares={"loop": 0.25})
    assert counts == {"loop": 1, "parting": 3}
    assert ledger.dropped == {"loop_over_its_share": 19, "parting_over_its_cap": 6}


def test_shares_that_leave_a_rest_are_meant_in_proportion():
    assert left(pairs(loop=30, parting=30), shares={"loop": 0.1, "parting": 0.2})[0] == {"loop": 15, "parting": 30}
    assert left(pairs(loop=5), shares={"loop": 0.1})[0] == {"loop": 5}


def test_shares_of_thirds_do_not_starve_each_other():
    thirds = {"loop": 0.34, "parting": 0.33, "wasted_step": 0.33}
    assert list(left(pairs(loop=1, parting=1, wasted_step=1), shares=thirds)[0].values()) == [1, 1, 1]
    # 100 are 0.34 of 294.1, and 0.33 of that are 97.
    assert list(left(pairs(loop=100, parting=100, wasted_step=100), shares=thirds)[0].values()) == [100, 97, 97]


def test_which_ones_stay_is_drawn_by_the_seed():
    given = pairs(loop=30)

    def drawn(seed: int) -> list[str]:
        return [pair.task.id for pair in balanced(given, {"loop": 5}, {}, Ledger("pairs"), seed=seed)]

    assert drawn(0) == drawn(0) != drawn(1)
