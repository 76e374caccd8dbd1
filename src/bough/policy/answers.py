"""What a policy says to the calls of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from bough.policy.routing import Routing


class Answers(NamedTuple):
    """What the policy says to the calls of a row, a tensor for each call.

    Of each answered token its log-probability and, without gradient, the entropy of the
    distribution it came from, both float32, and whether it was the likeliest token. Of a
    mixture of experts also how the row was routed. With a teacher, `divergences` are trained
    instead of the log-probabilities and have the gradient.
    """

    logprobs: list[Tensor]
    entropies: list[Tensor]
    greedy: list[Tensor]
    routing: Routing | None = None
    divergences: Sequence[Tensor] = ()

    @property
    def trained(self) -> list[Tensor]:
        """What the loss is a function of."""
        return list(self.divergences) or self.logprobs

    def detach(self) -> Answers:
        """The same without a gradient."""
        logprobs, entropies, greedy = ([value.detach() for value in values] for values in self[:3])
        divergences = [value.detach() for value in self.divergences]
        return Answers(logprobs, entropies, greedy, self.routing and self.routing.detach(), divergences)
