"""What the training loop knows of an objective: nothing but this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from bough.objectives.base import Loss
from bough.types import Call


@dataclass(frozen=True)
class Example:
    """What one record of the data asks of the model. Objectives add what they need to it.

    `cluster` names what it shares tokens with, `difficulty` orders a curriculum, `place`
    is where the record stands.
    """

    calls: list[Call]
    place: str = ""
    cluster: str = ""
    difficulty: float = 0.0

    @property
    def num_trained(self) -> int:
        return sum(len(call.completion_ids) for call in self.calls)


E = TypeVar("E", bound=Example)


class Objective(Protocol[E]):
    """From log-probabilities to a loss.

    The loss of a step is a sum over parts of examples. A part is what cannot be computed
    in pieces (a pair; for most objectives a single call): the loop may spread parts, not
    the calls of a part, over forward passes at will.
    """

    needs_reference: bool

    def parts(self, example: E) -> list[E]:
        """The example in pieces whose losses add up. Their calls are the example's own objects."""
        ...

    def amount(self, example: E) -> float:
        """What the example adds to the denominator of its optimizer step."""
        ...

    def loss(
        self,
        parts: Sequence[E],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        """These parts' share of the step's loss; `logprobs[p][c]` are those of part p's call c."""
        ...
