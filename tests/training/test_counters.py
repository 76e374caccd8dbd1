import math
from dataclasses import asdict
from typing import Any

import pytest

from bough.training.checkpoint import Counters

FULL = Counters(step=3, best_loss=1.5, levels=[0, 1], loss_scale={"scale": 65536.0, "growth_interval": 2000})


def test_counters_are_read_back_as_they_were():
    found = Counters.from_json(asdict(FULL))
    assert found == FULL
    assert isinstance(found.loss_scale["growth_interval"], int)  # a scaler takes nothing else


@pytest.mark.parametrize("name", ["budget", "gradient_checkpointing"])
def test_a_counter_that_is_missing_is_a_value_error(name: str):
    values = asdict(FULL)
    del values[name]
    with pytest.raises(ValueError, match="the counters are not"):
        Counters.from_json(values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1}, {"step": "3"}, {"step": 3.5}, {"step": True}, {"tokens_trained": None}, {"levels": [0, "1"]},
        {"best_loss": float("nan")}, {"loss_scale": []}, {"loss_scale": {"scale": -1.0}}, {"unknown": 1},
        {"gradient_checkpointing": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_counted_is_a_value_error(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=f"counters? .*{'not' if 'unknown' in wrong else next(iter(wrong))}"):
        Counters.from_json(asdict(FULL) | wrong)


@pytest.mark.parametrize("values", [None, [], "x", {}], ids=str)
def test_what_are_no_counters_is_a_value_error(values: Any):
    with pytest.raises(ValueError, match="the counters are not"):
        Counters.from_json(values)


def test_only_a_finite_loss_below_the_best_resets_the_count_of_evaluations_without_gain():
    counters = Counters()
    assert [counters.count_evaluation(loss) for loss in (2.0, 2.0, math.nan, 1.5, math.inf)] == [
        True, False, False, True, False
    ]  # fmt: skip
    assert (counters.best_loss, counters.evaluations_without_gain) == (1.5, 1)
