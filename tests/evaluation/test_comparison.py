import itertools
import re
from dataclasses import replace

import pytest

from bough.errors import InputError
from bough.evaluation.comparison import compare, matched, task_differences
from bough.evaluation.intervals import anytime_p, better_p, difference_interval, difference_sequence, outlook, sign_flip
from bough.evaluation.results import ModelResult
from bough.terminal.console import sentence
from tests.evaluation.samples import binary, result
from tests.later import Later

stats = Later("scipy.stats")

A = result("a", binary("1" * 10 + "0" * 10 + "1" * 2))
B = result("b", binary("1" * 10 + "1" * 10 + "0" * 2))


def test_one_attempt_a_task_is_mcnemars_test():
    [found] = compare([A, B])
    assert (found.first, found.second, found.test) == ("a", "b", "McNemar exact")
    assert (found.better, found.worse, found.tasks, found.episodes, found.left_out) == (10, 2, 22, 22, 0)
    assert found.rates == (pytest.approx(12 / 22), pytest.approx(20 / 22))
    assert found.success.mean == pytest.approx(8 / 22)
    assert found.success.p == found.adjusted_p == pytest.approx(stats.binomtest(2, 12).pvalue) and found.significant
    assert found.success.interval is not None and 8 / 22 in found.success.interval and found.success.interval.low > 0


def test_a_p_value_of_alpha_is_not_significant():
    [found] = compare([A, B])
    assert found.alpha == 0.05 and not replace(found, adjusted_p=0.05).significant


def test_several_attempts_are_compared_by_task():
    [found] = compare([result("a", "00 10 00 11 01 00"), result("b", "11 11 10 11 11 01")])
    differences = [1.0, 0.5, 0.5, 0.0, 0.5, 0.5]
    assert found.test == "Gaffke by task" and (found.tasks, found.episodes) == (6, 12)
    assert found.success.p == 2 * better_p(differences) > sign_flip(differences) == 2 / 32
    assert not found.significant


def test_unknown_and_unmatched_episodes_are_left_out_and_counted():
    [found] = compare([result("a", binary("1?00")), result("b", binary("11?01"))])
    assert (found.tasks, found.left_out) == (2, 3)
    assert found.rates == (0.5, 0.5)


def test_a_lost_episode_counts_against_either_direction():
    """Eight better, none worse, two lost: were the lost ones failures of b that a would have solved, 8 to 2."""
    [found] = compare([result("a", binary("0" * 8 + "xx")), result("b", binary("1" * 8 + "xx"))])
    assert (found.tasks, found.lost, found.left_out, found.success.mean) == (8, 2, 0, 1.0)
    assert found.success.p == pytest.approx(stats.binomtest(2, 10).pvalue) and not found.significant
    low, high = (difference_interval([1.0] * 8 + [last] * 2) for last in (-1.0, 1.0))
    assert found.success.interval is not None and low is not None and high is not None
    assert (found.success.interval.low, found.success.interval.high) == (low.low, high.high)
    [without] = compare([result("a", binary("0" * 8)), result("b", binary("1" * 8))])
    assert without.significant and without.success.p == 2 / 2**8


@pytest.mark.parametrize("sequential", [False, True])
def test_no_outcome_of_what_was_lost_makes_a_comparison_more_certain(sequential: bool):
    """Every way in which four lost episodes could have ended lies inside the bounds."""
    first, second = "00 10 x0 00 10 0x 00 00", "11 11 11 1x 11 11 11 x1"
    [bound] = compare([result("a", first), result("b", second)], sequential=sequential)
    assert bound.success.interval is not None and bound.lost == 4
    for ends in itertools.product("01", repeat=4):
        one, other = iter(ends[:2]), iter(ends[2:])
        words = [re.sub("x", lambda _, of=of: next(of), text) for text, of in ((first, one), (second, other))]
        [found] = compare([result("a", words[0]), result("b", words[1])], sequential=sequential)
        assert found.success.interval is not None
        assert found.success.p <= bound.success.p + 1e-12
        assert bound.success.interval.low <= found.success.interval.low + 1e-3
        assert bound.success.interval.high >= found.success.interval.high - 1e-3


def test_what_was_lost_is_matched_like_any_episode():
    [found] = compare([result("a", binary("1x0")), result("b", binary("110x"))])
    assert (found.episodes, found.lost, found.left_out) == (2, 1, 1), "the fourth task was played by b alone"


def test_a_comparison_that_cannot_be_made_may_be_left_out_and_counts_for_nothing():
    said: list[str] = []
    found = compare([A, result("none", ""), B], leave_out=said.append)
    assert found == compare([A, B]) and found[0].comparisons == 1
    assert said == ["a and none: none finished no episode"]
    with pytest.raises(InputError, match="none finished no episode"):
        compare([A, result("none", ""), B])


def test_attempts_are_matched_one_by_one():
    pairs, _ = matched(result("a", "1? 0"), result("b", "01 1"))
    assert task_differences(pairs) == [-1.0, 1.0]


def test_not_significant_comes_with_what_would_settle_it():
    [found] = compare([result("a", binary("1100010100")), result("b", binary("1110011100"))])
    assert not found.significant
    assert found.outlook == outlook([0, 0, 1, 0, 0, 0, 1, 0, 0, 0])


def test_several_comparisons_are_corrected():
    c = result("c", binary("1" * 10 + "0" * 4 + "1" * 8))
    two = compare([A, B, c])
    assert [(one.first, one.second) for one in two] == [("a", "b"), ("a", "c")]
    # 6 to 0 is 1/32, doubled for being the smaller of two; 10 to 2 is 0.039 and cannot fall below that.
    assert [one.adjusted_p for one in two] == [0.0625, 0.0625] and two[0].comparisons == 2
    assert two[0].success.p == pytest.approx(stats.binomtest(2, 12).pvalue) and not two[0].significant
    three = compare([A, B, c], against="all")
    assert [(one.first, one.second) for one in three] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert three[0].adjusted_p > three[0].success.p
    assert two[0].outlook.tasks is not None
    assert two[0].outlook.tasks > (compare([A, B])[0].outlook.tasks or 0), "a stricter test needs more"


def test_rewards_are_compared_where_they_are_known():
    a, b = result("a", binary("111"), reward=0.25), result("b", binary("111"), reward=0.75)
    assert compare([a, b])[0].reward is not None
    reward = compare([a, b])[0].reward
    assert reward is not None and (reward.mean, reward.p) == (0.5, 0.25)
    assert compare([A, B])[0].reward is None


def test_looking_while_playing_asks_for_a_test_that_allows_it():
    [found] = compare([A, B], sequential=True)
    differences = [0.0] * 10 + [1.0] * 10 + [-1.0] * 2
    assert found.success.p == anytime_p(differences) > stats.binomtest(2, 12).pvalue
    assert found.success.interval == difference_sequence(differences)
    assert "any stopping time" in found.test


def test_other_tasks_are_refused():
    other = result("b", binary("11"))
    changed = other.model_copy(update={"outcomes": [row.model_copy(update={"digest": "x"}) for row in other.outcomes]})
    with pytest.raises(InputError, match=r"played different tasks with the same name \(t0 and 1 more\)"):
        compare([A, changed])
    renamed = other.model_copy(update={"outcomes": [row.model_copy(update={"task": "x"}) for row in other.outcomes]})
    with pytest.raises(InputError, match="a and b have no task in common"):
        compare([A, renamed])
    with pytest.raises(InputError, match="no task has a known outcome for both"):
        compare([A, result("b", binary("??"))])


def test_copies_are_left_out_and_counted():
    def played(model: ModelResult) -> ModelResult:
        rows = [row.model_copy(update={"start": "s", "digest": "d"}) for row in model.outcomes[:8]]
        return model.model_copy(update={"outcomes": [*rows, *model.outcomes[8:]]})

    [found] = compare([played(result("a", binary("0" * 10))), played(result("b", binary("1" * 10)))])
    assert (found.tasks, found.copies, found.left_out, found.success.p) == (3, 7, 0, 2 / 2**3)
    assert "on 3 tasks (3 better, 0 worse, 7 copies left out)" in sentence(found.to_json())
    assert found.outlook == outlook([1.0] * 3)


def test_a_family_that_one_file_does_not_name_is_the_tasks_family():
    one, other = result("a", binary("0000")), result("b", binary("1111"), family="f")
    assert [compare(pair)[0].tasks for pair in ([one, other], [other, one])] == [1, 1]
