import pytest

from bough.ledger import Ledger


def test_what_came_in_is_kept_or_dropped_for_a_reason():
    ledger = Ledger("rows")
    ledger.keep(3)
    ledger.drop("too_long", 2)
    ledger.drop("torn")
    assert str(ledger) == "6 rows in, 3 kept, 3 dropped (2 too_long, 1 torn)"
    assert ledger.to_json() == {"item": "rows", "in": 6, "kept": 3, "dropped": {"too_long": 2, "torn": 1}}


def test_one_item_is_singular():
    assert str(Ledger("rows", 1, 1)) == "1 row in, 1 kept, 0 dropped"
    assert str(Ledger("trajectories", 1, 1)) == "1 trajectory in, 1 kept, 0 dropped"


def test_a_ledger_that_does_not_add_up_is_a_defect():
    ledger = Ledger("rows", came_in=2, kept=1)
    with pytest.raises(AssertionError, match="does not add up"):
        ledger.to_json()
