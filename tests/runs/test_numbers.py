from pathlib import Path

from bough.evaluation.contest import with_numbers
from bough.evaluation.results import Results
from bough.runs.numbers import numbers_of
from tests.evaluation.samples import result


def test_an_evaluation_is_told_with_its_interval_and_what_was_lost(tmp_path: Path):
    for words, lost in (("1 0 1 1", {}), ("1 0 1 x", {"lost": 1})):
        with_numbers(Results(environment="household", seed=0, models=[result("a", words)])).write(
            tmp_path / "results.json"
        )
        found = numbers_of(tmp_path)
        low, mean, high = (found.pop(name) for name in ("success_low", "success", "success_high"))
        assert low < mean < high and found == {"episodes": 4 - len(lost)} | lost
