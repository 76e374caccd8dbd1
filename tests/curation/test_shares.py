from collections import Counter
from typing import Any

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


def test_without_caps_and_shares_everything_stays():
    assert left(pairs(loop=3, parting=2))[0] == {"loop": 3, "parting": 2}


def test_a_cap_is_a_count():
    counts, ledger = left(pairs(loop=9, parting=2), caps={"loop": 4})
    assert counts == {"loop": 4, "parting": 2} and ledger.dropped == {"loop_over_its_cap": 5}


def test_a_share_is_of_what_is_left():
    # Half of the whole for 20 loops beside 6 partings: 6 and 6.
    counts, ledger = left(pairs(loop=20, parting=6), shares={"loop": 0.5})
    assert counts == {"loop": 6, "parting": 6} and ledger.dropped == {"loop_over_its_share": 14}


def test_a_quarter_beside_nine_others_is_three():
    assert left(pairs(loop=20, parting=9), shares={"loop": 0.25})[0] == {"loop": 3, "parting": 9}


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
