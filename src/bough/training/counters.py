"""Where a run is: the part of its state that a checkpoint keeps as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, StrictBool, StrictInt, TypeAdapter, ValidationError

Count = Annotated[StrictInt, Field(ge=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


@dataclass
class Counters:
    """Counts since the start of the run."""

    step: Count = 0
    tokens_trained: Count = 0
    tokens_computed: Count = 0
    tokens_raw: Count = 0
    token_budget: Count = 0  # as it was set
    budget: Count = 0  # as it is, where memory ran out
    gradient_checkpointing: StrictBool = False  # switched on where memory ran out
    best_loss: FiniteFloat | None = None
    evaluations_without_gain: Count = 0
    levels: list[Count] = field(default_factory=lambda: [0])
    success_total: Amount = 0.0
    success_count: Amount = 0.0
    overflows: Count = 0
    loss_scale: dict[str, Count | Amount] = field(default_factory=dict)

    def count_evaluation(self, loss: float) -> bool:
        """Notes an evaluation's loss; whether it is the lowest so far. One that is not finite never is."""
        best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        self.best_loss = loss if best else self.best_loss
        self.evaluations_without_gain = 0 if best else self.evaluations_without_gain + 1
        return best

    @classmethod
    def from_json(cls, values: Any) -> Counters:
        """The counters of a checkpoint. ValueError where one is missing, unknown or out of range."""
        names = {one.name for one in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError(f"the counters are not {', '.join(sorted(names))}")
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"the counter {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
