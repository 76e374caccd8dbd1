"""What fitness is measured by."""

from __future__ import annotations

from typing import Protocol

from bough.evolution.generation import Generation
from bough.evolution.score import Score


class Fitness(Protocol):
    """Measures members, all of a generation on the same records or tasks."""

    def of(self, generation: Generation) -> dict[str, Score]:
        """The scores of the members of a generation."""
        ...

    def of_winner(self, generation: Generation, name: str) -> Score:
        """The score of one member on what no member was selected on."""
        ...
