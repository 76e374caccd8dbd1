import json

import numpy as np
import pytest

from bough.errors import InputError
from bough.evaluation.gate import alpha_of_round, gate
from bough.evaluation.paired import sign_flip
from bough.evaluation.sequential import anytime_p, looks
from tests.evaluation.samples import binary, result


def test_five_better_and_none_worse_pass():
    """One-sided, all of five differing tasks up: 1/32."""
    found = gate(result("sft", binary("0" * 5 + "1" * 15)), result("dpo", binary("1" * 20)))
    assert found.promote and found.p == pytest.approx(1 / 32) and found.false_positive_rate == 0.05
    assert (found.difference, found.tasks) == (0.25, 20)
    assert "dpo is better: it goes on (+25.0 points on 20 tasks, one-sided p = 0.031" in found.reason


def test_four_better_do_not_and_the_earlier_one_stays():
    found = gate(result("sft", binary("0" * 4 + "1" * 16)), result("dpo", binary("1" * 20)))
    assert not found.promote and found.p == pytest.approx(1 / 16)
    assert "dpo is not shown to be better: the earlier one stays" in found.reason


def test_worse_is_never_better():
    found = gate(result("sft", binary("1" * 20)), result("dpo", binary("0" * 20)))
    assert not found.promote and found.p == 1.0 and found.difference == -1.0


def test_a_stricter_gate():
    before, after = result("a", binary("0" * 5 + "1" * 15)), result("b", binary("1" * 20))
    assert not gate(before, after, alpha=0.01).promote


def test_a_gate_without_outcomes_cannot_decide():
    with pytest.raises(InputError, match="no task has a known outcome for both"):
        gate(result("a", binary("11")), result("b", binary("??")))


@pytest.mark.parametrize(("tasks", "attempts", "shape"), [(50, 1, 2.0), (200, 1, 0.5), (40, 4, 1.0)])
def test_equal_models_pass_no_more_often_than_it_says(tasks: int, attempts: int, shape: float):
    """The gate's own test, on models that are equally good; 5% is the most, whole numbers make it less."""
    chance, runs = np.random.default_rng(0), 1_000
    passed = 0
    for _ in range(runs):
        easy = chance.beta(shape, shape, size=tasks)
        before, after = chance.binomial(attempts, easy), chance.binomial(attempts, easy)
        passed += sign_flip(((after - before) / attempts).tolist(), one_sided=True) <= 0.05
    assert 0.015 < passed / runs < 0.06


def test_the_whole_gate_errs_as_its_test_does():
    chance, runs = np.random.default_rng(1), 200
    passed = 0
    for _ in range(runs):
        words = ["".join("10"[flip] for flip in chance.integers(0, 2, size=40)) for _ in range(2)]
        passed += gate(result("a", binary(words[0])), result("b", binary(words[1]))).promote
    assert passed / runs < 0.08


def test_looking_until_it_passes_does_not_help_where_the_gate_knows_of_it():
    chance, runs = np.random.default_rng(2), 200
    peeking = knowing = 0
    for _ in range(runs):
        values = chance.choice([1.0, -1.0, 0.0], size=150, p=[0.2, 0.2, 0.6]).tolist()
        peeking += any(sign_flip(values[:time], one_sided=True) <= 0.05 for time in looks(150))
        knowing += any(anytime_p(values[:time], one_sided=True) <= 0.05 for time in looks(150))
    assert knowing / runs <= 0.05 < 0.08 < peeking / runs
    words = binary("0" * 6 + "1" * 20), binary("1" * 26)
    before, after = result("a", words[0]), result("b", words[1])
    assert gate(before, after).promote and not gate(before, after, sequential=True).promote


def test_all_rounds_together_spend_alpha_once():
    assert alpha_of_round(0.05, 1) == 0.025
    assert sum(alpha_of_round(0.05, number) for number in range(1, 10_000)) == pytest.approx(0.05, rel=1e-3)


def test_a_decision_can_be_written_as_json():
    found = gate(result("sft", binary("0" * 5 + "1" * 15)), result("dpo", binary("1" * 20)))
    written = json.loads(json.dumps(found.to_json()))
    assert (written["promote"], written["before"], written["after"], written["tasks"]) == (True, "sft", "dpo", 20)
