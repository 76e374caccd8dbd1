"""What a method that samples while it trains adds to one that reads files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from bough.training.method import CallSource, Example, Method
from bough.types import Group

if TYPE_CHECKING:
    from torch import Tensor

# Why the rewards of a group are equal.
FlatKind = Literal["same", "failed", "succeeded", "equal"]


@dataclass(frozen=True)
class GroupExample(Example):
    """The calls of a group's attempts, each with its advantage and the weight of its tokens.

    `old_logprobs` are the calls' log-probabilities before the first update on this group,
    where they were computed.
    """

    advantages: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    old_logprobs: tuple[Tensor, ...] = ()
    denominator: float = 0.0
    reward: float | None = None

    def by_call(self) -> list[GroupExample]:
        """Each of its calls alone, with what belongs to it."""
        return [
            replace(self, calls=[c], advantages=(a,), weights=(w,), old_logprobs=self.old_logprobs[i : i + 1])
            for i, (c, a, w) in enumerate(zip(self.calls, self.advantages, self.weights, strict=True))
        ]


class OnlineMethod(Method[GroupExample], Protocol):
    """A method that trains on groups of attempts as they are played."""

    def example(self, group: Group, source: CallSource) -> GroupExample:
        """The group as an example. Raises RowError where there is nothing to train on."""
        ...

    def against_flat(self, kind: FlatKind) -> Iterable[str]:
        """Settings to try where the rewards of most groups are equal; empty for a method that compares none."""
        ...
