"""Is the mean of bounded differences above zero? A test that asks nothing about how they spread.

A sample says little about losses that are rare and large. The test therefore adds one
difference to it, the worst there can be, and asks how often random weights (uniform over
all ways to divide 1 among the differences) make the weighted mean zero or less. That is
Gaffke's test (2005; Learned-Miller and Thomas, 2020). For differences of -1, 0 and 1,
one attempt per task, it is McNemar's exact test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bough.evaluation.distributions import bisect

# The worst difference between two rates.
WORST = -1.0
# Nodes and weights of an integral from 0 to infinity, t = u / (1 - u).
_U, _WEIGHTS = np.polynomial.legendre.leggauss(256)
_U, _WEIGHTS = (1.0 + _U) / 2.0, _WEIGHTS / 2.0
_T, _WEIGHTS = _U / (1.0 - _U), _WEIGHTS / (1.0 - _U) ** 2


def mean_p(differences: Sequence[float]) -> float:
    """The one-sided p-value of "the mean is at most zero", for independent differences of at least -1.

    Uniform weights are independent exponential variables divided by their sum, so that
    the p-value is the chance that Σ Eᵢ·dᵢ ≤ E₀. It is computed by inverting the
    transform of that sum along the line through its saddle point: no draws, and the same
    digits each time.
    """
    if max(differences, default=0.0) <= 0.0:
        return 1.0
    distinct, counts = np.unique([*differences, WORST], return_counts=True)

    def slope(s: float) -> float:
        return float((counts * distinct / (1.0 - s * distinct)).sum()) - 1.0 / s

    saddle = bisect(slope, 1.0 / float(distinct[0]), 0.0, 1e-8)
    curvature = float((counts * (distinct / (1.0 - saddle * distinct)) ** 2).sum()) + 1.0 / saddle**2
    scale = 3.0 / math.sqrt(curvature)
    line = saddle + 1j * scale * _T
    logs = -counts @ np.log(1.0 - np.outer(distinct, line)) - np.log(-line)
    return min(1.0, float(np.exp(logs).real @ _WEIGHTS) * scale / math.pi)
