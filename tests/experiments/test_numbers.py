import json
from pathlib import Path
from typing import Any

import pytest

from bough.evaluation.contest import with_numbers
from bough.evaluation.results import Results
from bough.experiments.record import numbers_of
from tests.evaluation.samples import result


def test_an_evaluation_is_told_with_its_interval_and_what_was_lost(tmp_path: Path):
    for words, lost in (("1 0 1 1", {}), ("1 0 1 x", {"lost": 1})):
        with_numbers(Results(environment="household", seed=0, models=[result("a", words)])).write(
            tmp_path / "results.json"
        )
        found = numbers_of(tmp_path)
        low, mean, high = (found.pop(name) for name in ("success_low", "success", "success_high"))
        assert low < mean < high and found == {"episodes": 4 - len(lost)} | lost


@pytest.mark.parametrize(
    "report",
    [
        5,
        {"success": 5},
        {"success": {}},
        {"success": {"mean": "x", "interval": None, "episodes": [1]}},
        {"success": {"mean": 10**400, "interval": {"low": None}, "episodes": "x"}},
    ],
)
def test_a_report_that_somebody_changed_has_no_numbers(tmp_path: Path, report: Any):
    results = Results(environment="household", seed=0, models=[result("a", "1 0")], reports={"a": report})
    results.write(tmp_path / "results.json")
    assert numbers_of(tmp_path) == {}


def test_only_finite_numbers_of_reports_and_ledgers_count(tmp_path: Path):
    ledgers: list[Any] = [5, {"item": "rows", "in": 3, "kept": 10**400}, {}]
    (tmp_path / "a.ledger.json").write_text(json.dumps({"ledgers": ledgers}))
    (tmp_path / "b.ledger.json").write_text('{"ledgers": 5}')
    (tmp_path / "report.json").write_text('{"episodes": 4, "a": NaN, "b": true, "c": 1' + "0" * 400 + "}")
    assert numbers_of(tmp_path) == {"episodes": 4, "rows_in": 3}
