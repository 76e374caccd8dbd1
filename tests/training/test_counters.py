import math
from dataclasses import asdict

from bough.training.checkpoint import Counters

FULL = Counters(step=3, best_loss=1.5, levels=[0, 1], loss_scale={"scale": 65536.0, "growth_interval": 2000})


def test_counters_are_read_back_as_they_were():
    found = Counters.from_json(asdict(FULL))
    assert found == FULL
    assert isinstance(found.loss_scale["growth_interval"], int)  # a scaler takes nothing else


def test_only_a_finite_loss_below_the_best_resets_the_count_of_evaluations_without_gain():
    counters = Counters()
    assert [counters.count_evaluation(loss) for loss in (2.0, 2.0, math.nan, 1.5, math.inf)] == [
        True, False, False, True, False
    ]  # fmt: skip
    assert (counters.best_loss, counters.evaluations_without_gain) == (1.5, 1)
