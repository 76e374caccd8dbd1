import json
from collections.abc import Sequence

import numpy as np
import pytest

from bough.errors import InputError
from bough.evaluation.comparison import matched
from bough.evaluation.gate import alpha_of_round, gate, type_changes
from bough.evaluation.intervals import anytime_p, better_p, looks, sign_flip
from bough.evaluation.results import ModelResult, Outcome
from tests.evaluation.equal_means import Rates, all_or_nothing, other_spread, rare_losses, sure_and_unsure
from tests.evaluation.samples import binary, outcomes, result
from tests.later import Later

stats = Later("scipy.stats")


@pytest.mark.parametrize(("better", "p"), [(5, 1 / 32), (4, 1 / 16)])
def test_five_better_and_none_worse_pass_and_four_do_not(better: int, p: float):
    """One-sided, all of five differing tasks up: 1/32."""
    before, after = result("sft", binary("0" * better + "1" * (20 - better))), result("dpo", binary("1" * 20))
    found = gate(before, after)
    assert found.promote == (better == 5) and found.p == pytest.approx(p) and found.false_positive_rate == 0.05
    assert (found.difference, found.tasks) == (better / 20, 20)
    said = "is better: promoted" if better == 5 else "is not shown to be better: the earlier model is kept"
    assert f"dpo {said} (+{5 * better}.0 points on 20 tasks, one-sided p = 0.0" in found.reason
    assert gate(before, after, alpha=found.p).promote, "alpha is the most that p may be"
    worse = gate(after, result("sft", binary("0" * 20)))
    assert not worse.promote and (worse.p, worse.difference) == (1.0, -1.0)


def typed(name: str, **words: str) -> ModelResult:
    """A model's outcomes by type: `heat="10"` are two tasks of the type heat."""
    found = [
        one.model_copy(update={"task": f"{kind} {one.task}", "digest": "", "type": kind})
        for kind, word in words.items()
        for one in outcomes(binary(word))
    ]
    return ModelResult(name=name, outcomes=found)


def untyped(model: ModelResult) -> ModelResult:
    return model.model_copy(update={"outcomes": [one.model_copy(update={"type": None}) for one in model.outcomes]})


def test_a_significant_loss_on_one_type_refuses_a_model_that_is_better_overall():
    before, after = typed("a", cool="0" * 20, heat="1" * 6), typed("b", cool="1" * 20, heat="0" * 6)
    assert gate(before, after).promote and gate(before, after).types == ()
    found = gate(before, after, by_type=True)
    assert not found.promote and found.p < 0.05
    assert (
        "b is worse on heat (-100.0 points on 6 tasks, corrected p = 0.031): the earlier model is kept" in found.reason
    )
    cool, heat = found.types  # all of six differing tasks down: 1/64, times two types
    assert (cool.type, cool.tasks, cool.difference, cool.p) == ("cool", 20, 1.0, 1.0)
    assert (heat.type, heat.tasks, heat.difference, heat.p) == ("heat", 6, -1.0, pytest.approx(2 / 64))
    assert json.loads(json.dumps(found.to_json()))["types"][1]["type"] == "heat"


def test_losses_are_corrected_for_the_number_of_types():
    # Five tasks down are 1/32 for one type, which passes alone and not among two.
    one = gate(typed("a", heat="1" * 5), typed("b", heat="0" * 5), by_type=True)
    assert one.types[0].p == pytest.approx(1 / 32) and "is worse on heat" in one.reason
    before, after = typed("a", cool="0" * 20, heat="1" * 5), typed("b", cool="1" * 20, heat="0" * 5)
    two = gate(before, after, by_type=True)
    assert two.promote and two.types[1].p == pytest.approx(2 / 32)


def test_a_loss_on_a_type_is_significant_where_its_p_value_is_alpha():
    before, after = typed("a", cool="0" * 20, heat="1" * 6), typed("b", cool="1" * 20, heat="0" * 6)
    found = gate(before, after, alpha=2 / 64, by_type=True)
    assert found.types[1].p == 2 / 64 and found.p < 2 / 64 and not found.promote
    assert gate(before, after, alpha=0.99 * 2 / 64, by_type=True).promote


def test_the_change_of_a_type_is_tested_once_unless_it_was_looked_at():
    before, after = typed("a", heat="1" * 6), typed("b", heat="0" * 6)
    (change,) = type_changes(matched(before, after)[0])
    assert change.p == 1 / 64
    (change,) = type_changes(matched(before, after)[0], sequential=True)
    assert change.p == anytime_p([1.0] * 6, one_sided=True) > 1 / 64


def test_a_type_that_either_model_names_is_the_tasks_type():
    """Lost episodes on file need not name the type of their task."""
    words = {"cool": "01", "heat": "10"}
    lacking, naming = untyped(typed("a", **words)), typed("b", **words)
    for before, after in [(lacking, naming), (naming, lacking)]:
        found = gate(before, after, by_type=True)
        assert [(change.type, change.tasks) for change in found.types] == [("cool", 2), ("heat", 2)]


def test_tasks_without_a_type_are_one_type():
    found = gate(result("a", binary("0" * 5)), result("b", binary("1" * 5)), by_type=True)
    assert found.promote and [change.type for change in found.types] == [None]


def test_a_gate_without_outcomes_cannot_decide():
    with pytest.raises(InputError, match="no task has a known outcome for both"):
        gate(result("a", binary("11")), result("b", binary("??")))


@pytest.mark.parametrize(("tasks", "attempts", "shape"), [(50, 1, 2.0), (200, 1, 0.5), (40, 4, 1.0)])
def test_equal_models_pass_no_more_often_than_it_says(tasks: int, attempts: int, shape: float):
    """The gate's own test, on models that are equally good; 5% is the most, whole numbers make it less."""
    rng, runs = np.random.default_rng(0), 1_000
    passed = 0
    for _ in range(runs):
        easy = rng.beta(shape, shape, size=tasks)
        before, after = rng.binomial(attempts, easy), rng.binomial(attempts, easy)
        passed += better_p(((after - before) / attempts).tolist()) <= 0.05
    assert 0.0 < passed / runs < 0.06


@pytest.mark.parametrize(
    ("rates", "tasks", "attempts", "by_flips"),
    [
        (all_or_nothing, 20, 4, True),
        (all_or_nothing, 100, 8, True),
        (rare_losses, 60, 4, False),
        (sure_and_unsure, 40, 4, False),
        (other_spread, 40, 4, False),
    ],
)
def test_models_of_equal_means_pass_no_more_often_than_it_says(rates: Rates, tasks: int, attempts: int, by_flips: bool):
    """No task is alike for both models; only their means are. Sign flips alone err too often where `by_flips`."""
    rng, runs = np.random.default_rng(5), 600
    passed = flipped = 0
    for _ in range(runs):
        before, after = (rng.binomial(attempts, rate) for rate in rates(rng, tasks))
        differences = ((after - before) / attempts).tolist()
        if sign_flip(differences, one_sided=True) <= 0.05:  # else its p-value is not below 5% either
            flipped += 1
            passed += better_p(differences) <= 0.05
    assert passed / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5
    assert flipped / runs > 0.07 or not by_flips


def test_one_task_or_no_difference_never_passes():
    assert gate(result("a", "0000"), result("b", "1111")).p == pytest.approx(0.5)
    assert gate(result("a", "01 10 11"), result("b", "10 01 11")).p == 1.0


def test_a_better_model_still_passes():
    """Four attempts at each of 100 tasks, ten points better: nine times in ten."""
    rng, runs, passed = np.random.default_rng(7), 200, 0
    for _ in range(runs):
        easy = 0.9 * rng.random(100)
        passed += better_p(((rng.binomial(4, easy + 0.1) - rng.binomial(4, easy)) / 4).tolist()) <= 0.05
    assert passed / runs > 0.8


@pytest.mark.parametrize("mark", "x?")
def test_lost_and_unknown_episodes_count_against_the_new_model(mark: str):
    """Nine of nine and seven lost are nine better and seven worse, were the lost ones what the earlier one solves."""
    before = result("sft", binary("0" * 9 + "1" * 7))
    found = gate(before, result("dpo", binary("1" * 9 + mark * 7)))
    assert not found.promote and (found.tasks, found.lost) == (16, 7)
    assert found.difference == pytest.approx(2 / 16) and found.p == pytest.approx(stats.binom.sf(8, 16, 0.5))
    assert "7 lost or unknown episodes counted against it" in found.reason
    assert gate(before, result("dpo", binary("1" * 9 + "0" * 7))).p == found.p


@pytest.mark.parametrize("mark", "x?")
def test_what_the_earlier_model_lost_or_does_not_know_counts_as_solved(mark: str):
    after = result("dpo", binary("1" * 12))
    assert gate(result("sft", binary("0" * 6 + "1" * 6)), after).promote
    found = gate(result("sft", binary("0" * 2 + mark * 4 + "1" * 6)), after)
    assert not found.promote and found.lost == 4 and found.difference == pytest.approx(2 / 12)
    assert not gate(result("sft", binary("0" * 2 + mark * 4 + "1" * 6)), after, sequential=True).promote


def clustered(name: str, solved: Sequence[bool], size: int, how: str) -> ModelResult:
    """One attempt at each task; every `size` tasks in a row are related in the way that `how` says."""

    def related(number: int) -> dict[str, str]:
        same = number // size
        if how == "family":
            return {"family": f"f{same}"}
        return {"start": f"s{same}"} if how == "copies" else {}

    rows = [
        Outcome(task=f"t{number}", digest="", success=bool(success), **related(number))
        for number, success in enumerate(solved)
    ]
    return ModelResult(name=name, outcomes=rows)


@pytest.mark.parametrize("how", ["family", "copies"])
@pytest.mark.parametrize(("clusters", "size"), [(20, 5), (50, 2), (10, 10)])
def test_outcomes_that_repeat_do_not_make_an_equal_model_pass(clusters: int, size: int, how: str):
    """Taken for independent, they pass 22, 11 and 31 times in 100."""
    rng, runs, passed = np.random.default_rng(1), 400, 0
    for _ in range(runs):
        words = [np.repeat(rng.random(clusters) < 0.5, size).tolist() for _ in range(2)]
        before, after = (clustered(name, word, size, how) for name, word in zip("ab", words, strict=True))
        passed += gate(before, after).promote
    assert passed / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


@pytest.mark.parametrize("how", ["family", "copies"])
def test_related_tasks_count_once(how: str):
    """Six families of five tasks: all up is 1/64, however many tasks each has."""
    before, after = clustered("a", [False] * 30, 5, how), clustered("b", [True] * 30, 5, how)
    found = gate(before, after)
    assert (found.p, found.tasks, found.difference) == (1 / 64, 6, 1.0)
    assert gate(before, after, sequential=True).p == anytime_p([1.0] * 6, one_sided=True)
    [change] = gate(before, after, by_type=True).types
    assert change.tasks == 6
    assert ("24 tasks with the content and start of another one left out" in found.reason) == (how == "copies")


def test_what_came_of_copies_does_not_decide_whether_they_are_copies():
    """Else a group would count once where its losses are alike, and fully where its successes differ."""
    before, after = clustered("a", [False] * 30, 30, "copies"), clustered("b", [True] * 29 + [False], 30, "copies")
    assert gate(before, after).tasks == 1


def test_tasks_of_another_content_that_start_alike_are_different_tasks():
    """A hidden number: the same question, another answer."""

    def hidden(name: str, success: bool) -> ModelResult:
        rows = clustered(name, [success] * 30, 30, "copies").outcomes
        changed = [row.model_copy(update={"digest": str(number)}) for number, row in enumerate(rows)]
        return ModelResult(name=name, outcomes=changed)

    assert gate(hidden("a", False), hidden("b", True)).tasks == 30


def test_looking_until_it_passes_does_not_help_where_the_gate_knows_of_it():
    rng, runs = np.random.default_rng(2), 200
    peeking = knowing = 0
    for _ in range(runs):
        values = rng.choice([1.0, -1.0, 0.0], size=150, p=[0.2, 0.2, 0.6]).tolist()
        peeking += any(sign_flip(values[:time], one_sided=True) <= 0.05 for time in looks(150))
        knowing += any(anytime_p(values[:time], one_sided=True) <= 0.05 for time in looks(150))
    assert knowing / runs <= 0.05 < 0.08 < peeking / runs
    words = binary("0" * 6 + "1" * 20), binary("1" * 26)
    before, after = result("a", words[0]), result("b", words[1])
    assert gate(before, after).promote and not gate(before, after, sequential=True).promote


def test_all_rounds_together_spend_alpha_once():
    assert alpha_of_round(0.05, 1) == 0.025
    assert sum(alpha_of_round(0.05, number) for number in range(1, 10_000)) == pytest.approx(0.05, rel=1e-3)
