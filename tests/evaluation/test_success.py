from itertools import combinations

import pytest

from bough.evaluation.intervals import confidence_sequence, rate_interval, wilson
from bough.evaluation.results import Outcome
from bough.evaluation.success import Measure, ladder, pass_all, pass_at, report
from tests.evaluation.samples import binary, lost, outcomes


def interval(measure: Measure) -> tuple[float, float]:
    assert measure.interval is not None
    return measure.interval.low, measure.interval.high


def test_unknown_outcomes_are_counted_and_no_failures():
    found = report(outcomes(binary("1110?0??")))
    assert (found.tasks, found.episodes, found.unknown, found.lost) == (8, 8, 3, 0)
    assert found.success.mean == 3 / 5 and found.success.episodes == 5
    assert interval(found.success) == wilson(3, 5)
    assert found.failures == {"unknown": 2}, "a failure without a stop reason; an unknown outcome is none"


def test_lost_episodes_widen_the_interval_as_failures_and_as_successes():
    """Nine of nine, seven lost: at worst nine of sixteen."""
    found = report(outcomes(binary("1" * 9)), lost=lost(binary("." * 9 + "x" * 7)))
    assert (found.success.mean, found.episodes, found.lost) == (1.0, 9, 7)
    assert interval(found.success) == (wilson(9, 16)[0], wilson(16, 16)[1]) and interval(found.success)[0] < 0.34
    assert found.success.interval is not None and "lost episodes as failures" in found.success.interval.method
    assert found.lost_by_task == {f"t{number}": 1 for number in range(9, 16)}


def test_lost_attempts_count_in_every_rate_of_success():
    words = "11 1x 00 xx"
    found = report(outcomes(words, type="a"), lost=lost(words, type="a"))
    worst, best = rate_interval([1.0, 0.5, 0.0, 0.0], 8), rate_interval([1.0, 1.0, 0.0, 1.0], 8)
    assert worst is not None and best is not None and found.success.mean == 2 / 3
    assert interval(found.success) == interval(found.types["a"])
    assert interval(found.success)[0] <= worst.low and interval(found.success)[1] >= best.high
    assert found.lost_by_task == {"t1": 1, "t3": 2} and found.pass_at == {}, "one task has one attempt that ended"
    both = report(outcomes("11 11 00"), lost=lost(". . . xx"))
    assert both.pass_all[2].mean == 2 / 3
    assert interval(both.pass_all[2])[0] <= rate_interval([1.0, 1.0, 0.0, 0.0], 8).low  # type: ignore[union-attr]


def test_lost_episodes_widen_a_confidence_sequence_too():
    found = report(outcomes(binary("1" * 30)), lost=lost(binary("." * 30 + "x" * 10)), sequential=True)
    assert interval(found.success)[0] == confidence_sequence([1.0] * 30 + [0.0] * 10).low


def test_attempts_are_means_by_task_with_a_clustered_interval():
    found = report(outcomes("11 10 00 0?"))
    assert found.success.mean == (1 + 0.5 + 0 + 0) / 4 and found.success.episodes == 7
    assert found.success.interval == rate_interval([1.0, 0.5, 0.0, 0.0], 7)
    assert found.pass_at == {} == found.pass_all, "one task has one known attempt only"


def test_pass_at_and_pass_all():
    found = report(outcomes("1100 1111 0000"))
    # Of the six pairs out of 1100, five hold a success and one is all success.
    assert found.pass_at[2].mean == pytest.approx((5 / 6 + 1 + 0) / 3)
    assert found.pass_all[2].mean == pytest.approx((1 / 6 + 1 + 0) / 3)
    assert (found.pass_at[4].mean, found.pass_all[4].mean) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert list(found.pass_at) == [2, 4]


def test_costs_and_errors():
    rows = [
        *outcomes("1", reward=1.0, turns=4, prompt_tokens=10, completion_tokens=8, errors={"malformed": 1}),
        *[
            row.model_copy(update={"task": "t1"})
            for row in outcomes("0", reward=None, turns=6, completion_tokens=2, stop="loop", errors={"malformed": 3})
        ],
    ]
    found = report(rows)
    assert (found.reward.mean, found.reward.episodes) == (1.0, 1)
    assert (found.turns.mean, found.prompt_tokens.mean, found.completion_tokens.mean) == (5.0, 5.0, 5.0)
    assert found.errors == {"malformed": 4} and found.invalid_rate == 4 / 10
    assert found.failures == {"loop": 1}


def test_a_mistakes_rate_is_the_share_of_episodes_that_made_it():
    made = [{"loop": 3, "slip": 0}, {"loop": 1, "wasted_step": 1}, {}, {}]
    rows = [row.model_copy(update={"mistakes": one}) for row, one in zip(outcomes("1 1 0 0"), made, strict=True)]
    found = report(rows).mistakes
    assert {kind: rate.mean for kind, rate in found.items()} == {
        "loop": 0.5, "slip": 0, "wasted_step": 0.25,
    }  # fmt: skip
    assert found["loop"].interval == rate_interval([1, 1, 0, 0], 4, 0.95)


def test_types_of_tasks_have_rates_of_their_own():
    rows = [row.model_copy(update={"type": "b" if row.task < "t2" else "a"}) for row in outcomes(binary("10111"))]
    found = report(rows)
    assert list(found.types) == ["a", "b"]
    assert (found.types["a"].mean, found.types["b"].mean) == (1.0, 0.5)
    assert interval(found.types["a"]) == wilson(3, 3)


def test_a_number_that_was_looked_for_gets_intervals_that_hold_at_any_time():
    rows = [row.model_copy(update={"reward": float(row.success is True)}) for row in outcomes(binary("1101"))]
    found = report(rows, sequential=True)
    assert found.success.interval == confidence_sequence([1, 1, 0, 1])
    assert found.reward.mean == 0.75 and found.reward.interval is None
    assert report(rows).reward.interval is not None


def test_nothing_at_all_is_reported_as_nothing():
    found = report([])
    assert (found.success.mean, found.success.interval, found.invalid_rate) == (None, None, None)
    assert report(outcomes("?"), sequential=True).success.interval is None


def test_the_report_as_json_has_plain_keys():
    found = report(outcomes("11 00")).to_json()
    assert found["success"]["interval"]["method"] == "Wilson, attempts clustered by task"
    assert set(found["pass_at"]) == {"2"} and found["pass_at"]["2"]["mean"] == 0.5


def test_a_rate_is_no_surer_for_tasks_that_repeat():
    """Ten families of eight tasks that all end alike are ten observations."""
    rows = [row.model_copy(update={"family": row.task}) for row in outcomes(" ".join(["1"] * 5 + ["0"] * 5))]
    copies = [row.model_copy(update={"task": f"{row.task} {number}"}) for row in rows for number in range(8)]
    found = report(copies)
    assert (found.tasks, found.success.mean) == (80, 0.5)
    assert found.success.interval == rate_interval([1.0] * 5 + [0.0] * 5, 80)


def test_attempts_at_different_tasks_of_a_family_are_not_attempts_at_one_task():
    """One task of each family is always solved, the other never: of two attempts at a task, one succeeds in half."""
    rows = [
        Outcome(task=f"{name}-{solved}", digest="", family=name, attempt=attempt, success=bool(solved))
        for name in "abcdefgh"
        for solved in (0, 1)
        for attempt in (0, 1)
    ]
    found = report(rows)
    assert found.pass_at.keys() == found.pass_all.keys() == {2}
    assert found.pass_at[2].mean == found.pass_all[2].mean == 0.5
    assert report([row for row in rows if row.attempt == 0]).pass_at == {}


@pytest.mark.parametrize(("successes", "attempts"), [(0, 4), (1, 4), (2, 4), (4, 4), (3, 8)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_both_are_shares_of_all_choices_of_k(k: int, successes: int, attempts: int):
    ends = [True] * successes + [False] * (attempts - successes)
    choices = list(combinations(ends, k))
    assert pass_at(k, successes, attempts) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_all(k, successes, attempts) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_k_goes_as_far_as_every_task_does():
    assert ladder(8) == [2, 4, 8]
    assert ladder(6) == [2, 4, 6]
    assert ladder(3) == [2, 3]
    assert ladder(2) == [2]
    assert ladder(1) == ladder(0) == []
