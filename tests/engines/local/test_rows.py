import pytest

from bough.engines.local.rows import batches, rounded
from bough.engines.local.schedule import Resident, Span


@pytest.mark.parametrize(("needed", "number"), [(1, 2), (3, 4), (8, 8), (9, 10), (17, 20), (65, 80), (128, 128)])
def test_numbers_of_rows_are_rounded_up_to_a_few(needed, number):
    assert rounded(needed) == number


def test_rounding_costs_at_most_a_quarter_and_makes_few_numbers():
    assert all(needed <= rounded(needed) <= needed * 1.25 for needed in range(9, 257))
    assert len({rounded(needed) for needed in range(1, 257)}) <= 25


def test_prompts_are_read_together_up_to_a_number_of_tokens():
    spans = [Span(Resident(), [0] * size, False) for size in (10_000, 6_000, 1_000, 20_000, 5)]
    assert [[len(span.tokens) for span in batch] for batch in batches(spans)] == [
        [10_000, 6_000],
        [1_000],
        [20_000],
        [5],
    ]
