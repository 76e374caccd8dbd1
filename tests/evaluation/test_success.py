import math
import random
from itertools import combinations

import pytest

from bough.evaluation.intervals import confidence_sequence, rate_interval, wilson
from bough.evaluation.results import Lost, ModelResult, Outcome
from bough.evaluation.success import Measure, across_seeds, between_seeds, ladder, pass_all, pass_at, rate_of, report
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


def run(solved: str, seed: int = 0) -> ModelResult:
    """A run whose tasks are solved (1) or not (0); tasks of different seeds are different tasks."""
    outcomes = [Outcome(task=f"t{n}", digest=f"{seed}-{n}", success=one == "1") for n, one in enumerate(solved)]
    return ModelResult(name="m", outcomes=outcomes)


def test_every_seed_has_the_same_weight():
    found = across_seeds([run("1111", 0), run("00", 1)])
    assert found.mean == 0.5 and found.episodes == 6
    assert rate_of(run("1110")) == 0.75 and rate_of(run("")) is None


def test_between_seeds_it_is_the_mean_with_students_t():
    """0.4, 0.5 and 0.6: s = 0.1, t = 4.303 for 2 degrees of freedom; Wilson's form shrinks towards one half."""
    found = between_seeds([0.4, 0.5, 0.6], tasks=3000)
    half = 4.30265 * 0.1 / math.sqrt(3)
    effective = 0.25 * 3 / 0.01
    assert (found.high - found.low) / 2 == pytest.approx(half / math.sqrt(1 + 4.30265**2 / effective), rel=1e-4)
    assert found.low + found.high == pytest.approx(1.0)


def test_seeds_that_agree_by_chance_are_as_uncertain_as_their_tasks():
    agree = between_seeds([0.5, 0.5, 0.5], tasks=300)
    assert agree.width == pytest.approx(between_seeds([0.5, 0.5001, 0.4999], tasks=300).width)
    assert agree.width > 2 * 1.96 * math.sqrt(0.25 / 300)
    assert between_seeds([1.0, 1.0, 1.0], tasks=300).low < 0.97


def test_the_wider_of_seeds_and_tasks_counts():
    same_tasks = [run("1" * 10 + "0" * 10) for _ in range(12)]
    assert across_seeds(same_tasks).interval.width == pytest.approx(  # type: ignore[union-attr]
        2 * 2.093 * math.sqrt(0.25 / 20) / math.sqrt(1 + 2.093**2 / 20), rel=1e-3
    ), "20 tasks stay 20 tasks, however many seeds play them"
    other_tasks = [run("1" * 10 + "0" * 10, seed) for seed in range(12)]
    assert across_seeds(other_tasks).interval.width < 0.2, "tasks of one name are not one task"  # type: ignore[union-attr]
    spread = [run("1" * 20, 0), run("0" * 20, 1), run("1" * 10 + "0" * 10, 2)]
    assert across_seeds(spread).interval.width > 0.9  # type: ignore[union-attr]


def test_one_seed_says_that_it_is_one():
    found = across_seeds([run("1100")])
    assert found.interval is not None and found.interval.method == "one seed, by tasks"
    assert across_seeds([]).mean is None


def test_lost_episodes_widen_the_interval():
    lost = [Lost(task=f"l{n}", digest=f"l{n}", why="crash") for n in range(10)]
    whole, torn = run("10" * 20), run("10" * 20).model_copy(update={"lost": lost})
    without, found = across_seeds([whole, run("10" * 20, 1)]), across_seeds([torn, run("10" * 20, 1)])
    assert found.mean == without.mean == 0.5 and found.interval is not None and without.interval is not None
    assert found.interval.low < without.interval.low and found.interval.high > without.interval.high
    assert "lost episodes as failures" in found.interval.method


def test_the_interval_covers_the_mean_of_all_seeds_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(300):
        rates = [rng.uniform(0.3, 0.9) for _ in range(3)]  # what seeds come to; their mean is 0.6
        runs = [run("".join("01"[rng.random() < rate] for _ in range(40)), seed) for seed, rate in enumerate(rates)]
        interval = across_seeds(runs).interval
        assert interval is not None
        covered += 0.6 in interval
    assert 0.92 <= covered / 300 <= 0.995
