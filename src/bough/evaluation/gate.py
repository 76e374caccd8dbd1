"""The gate between two stages: the new adapter goes on only if it is better for real.

It says yes to a model that is no better in at most `alpha` of all cases, whatever the
number of tasks; in doubt the earlier adapter stays.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bough.errors import InputError
from bough.evaluation.comparison import matched, task_differences
from bough.evaluation.paired import sign_flip
from bough.evaluation.results import ModelResult
from bough.evaluation.sequential import anytime_p


@dataclass(frozen=True)
class Decision:
    """Whether `after` takes the place of `before`. `false_positive_rate` is the most that such a yes may err."""

    promote: bool
    reason: str
    before: str
    after: str
    difference: float
    p: float
    false_positive_rate: float
    tasks: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gate(before: ModelResult, after: ModelResult, *, alpha: float = 0.05, sequential: bool = False) -> Decision:
    """Decides by a one-sided exact test on the tasks that both played.

    `sequential`: the number of tasks was decided by looking at the results, so that the
    test must hold at any time.
    """
    differences = task_differences(matched(before, after))
    if not differences:
        raise InputError(f"{before.name} and {after.name}: no task has a known outcome for both")
    mean = math.fsum(differences) / len(differences)
    p = (anytime_p if sequential else sign_flip)(differences, one_sided=True)
    promote = p <= alpha
    seen = f"{100 * mean:+.1f} points on {len(differences)} tasks, one-sided p = {p:.2g}"
    verdict = "is better: it goes on" if promote else "is not shown to be better: the earlier one stays"
    reason = f"{after.name} {verdict} ({seen}; at most {alpha:.2g} of such decisions promote a model that is no better)"
    return Decision(promote, reason, before.name, after.name, mean, p, alpha, len(differences))


def alpha_of_round(alpha: float, number: int) -> float:
    """What round 1, 2, 3, … may spend, so that all rounds together, however many, err at most `alpha`."""
    return alpha / (number * (number + 1))
