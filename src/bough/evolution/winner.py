"""The report about the winner: the fitness it was selected by, and its fitness on what no member was selected on.

The best of N members is partly the luckiest one, so the first number is too high on average. The
difference between the two is the shrinkage.
"""

from __future__ import annotations

import math
from typing import Any

from bough.evolution.generation import Generation
from bough.evolution.score import Score
from bough.evolution.selection import Scores, ranked
from bough.evolution.settings import EvolveConfig


def winner_report(config: EvolveConfig, generation: Generation, scores: Scores, again: Score) -> dict[str, Any]:
    """The content of report.json."""
    name = ranked(scores)[0]
    selected = scores[name]
    shrinkage = selected.fitness - again.fitness
    winner = generation.individual(name)
    return {
        "step": winner.step,
        "winner": winner.described(),
        "metric": config.metric,
        "selected": selected.to_json(),
        "untouched": again.to_json(),
        "shrinkage": shrinkage if math.isfinite(shrinkage) else None,
        "members": len(scores),
        "generations": generation.number + 1,
        "updates": generation.used.updates,
        "empty_updates": generation.used.empty,
        "tokens_computed": generation.used.tokens,
        "seconds": round(generation.used.seconds, 3),
        "weights": "final",
    }
