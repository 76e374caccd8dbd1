"""What training knows of a method: its examples, how they split into parts, and their loss.

Methods and their settings share a file, so nothing here loads torch before a loss is computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar, overload, runtime_checkable

from bough.data.base import Sample, digest
from bough.errors import RowError
from bough.ledger import Ledger, Mean
from bough.types import Call, Message, Turn, split_conversation

if TYPE_CHECKING:
    from torch import Tensor

    from bough.chat.template import CallBuilder


# A file, a folder of shards, or records in memory.
Data = str | Path | Iterable[Sample]


@dataclass(frozen=True)
class Example:
    """What one record of the data asks of the model. Methods add what they need to it.

    `cluster` names what it shares tokens with, `difficulty` orders a curriculum, `place`
    is where the record came from.
    """

    calls: list[Call]
    place: str = ""
    cluster: str = ""
    difficulty: float = 0.0

    @property
    def own(self) -> list[Call]:
        """The calls that are trained. They come first; others are only measured."""
        return self.calls

    @property
    def num_trained(self) -> int:
        return sum(len(call.completion_ids) for call in self.own)


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


E = TypeVar("E", bound=Example)


@dataclass
class Examples(Generic[E]):
    """The examples of a data set, and how many of its rows and calls were kept or dropped.

    `name` is the file's, for messages. `digest` covers the records and the tokens of the
    examples: the same data, read in the same way. `temperatures` are those that replies were
    sampled at, where that is known. The examples may be on disk and be read when they are asked for.
    """

    name: str = ""
    examples: Sequence[E] = ()
    rows: Ledger = field(default_factory=lambda: Ledger("rows"))
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))
    temperatures: set[float] = field(default_factory=set)
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the examples."""
        return {
            "rows": self.rows.to_json(),
            "calls": self.calls.to_json(),
            "temperatures": sorted(self.temperatures),
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, name: str, kept: dict[str, Any]) -> Self:
        rows, calls = Ledger.from_json(kept["rows"]), Ledger.from_json(kept["calls"])
        return cls(name, (), rows, calls, set(kept["temperatures"]), kept["digest"])


class CallSource:
    """Builds the calls of turns and counts them."""

    def __init__(self, builder: CallBuilder, ledger: Ledger) -> None:
        self.builder, self.ledger = builder, ledger

    def calls(
        self, start: list[Message], turns: list[Turn], tools: list[dict[str, Any]], *, corrections: bool = False
    ) -> dict[int, Call]:
        """The calls of the trained turns, by turn; those that cannot be trained are dropped with their reason.

        Without `corrections`, what was sampled is what is trained: a turn that has one raises RowError.
        """
        if not corrections and any(turn.correction for turn in turns):
            raise RowError("has_corrections", "this episode has corrections; only SFT learns from them")
        found = {}
        for built in self.builder.build(start, turns, tools):
            if built.call is None:
                assert built.reason is not None
                self.ledger.drop(built.reason)
            else:
                self.ledger.keep()
                found[built.turn] = built.call
        return found


def head_of(start: list[Message]) -> str:
    """A name for the episode that a history belongs to: what was said before the first reply."""
    return digest(*split_conversation(start)[0])


def count_calls(ledger: Ledger, of_row: Ledger, trained: int, reason: str) -> None:
    """Counts a row's calls: `trained` of them are kept, the other good ones are dropped for `reason`."""
    ledger.keep(trained)
    for why, count in (of_row.dropped + Counter({reason: of_row.kept - trained})).items():
        ledger.drop(why, count)


class LazyExamples(Sequence[E]):
    """Examples that `at` makes when they are asked for. A plan knows these of all of them before."""

    clusters: Sequence[Hashable]
    difficulties: Sequence[float]

    def at(self, index: int) -> E:
        """Example `index`, counted from 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.difficulties)

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> E | list[E]:
        numbers = range(len(self))[index]
        return self.at(numbers) if isinstance(numbers, int) else [self.at(number) for number in numbers]


def columns(examples: Sequence[Example]) -> tuple[Sequence[Hashable], Sequence[float]]:
    """The clusters and the difficulties of examples."""
    if isinstance(examples, LazyExamples):
        return examples.clusters, examples.difficulties
    return [example.cluster for example in examples], [example.difficulty for example in examples]


class Loss(NamedTuple):
    """One micro-batch's share of the optimizer step's loss. Shares add up; so do their metrics."""

    value: Tensor
    metrics: dict[str, Mean]


class Method(Protocol[E]):
    """From records to examples, and from log-probabilities to a loss.

    The loss of a step is a sum over parts of examples. A part cannot be computed in pieces
    (a pair; for most methods a single call): the loop may spread parts over forward passes
    as it likes, but not the calls of one part.

    `temperature` is the sampling temperature of the log-probabilities.
    """

    needs_reference: bool
    temperature: float

    def examples(self, data: Data, builder: CallBuilder) -> Examples[E]:
        """The examples of a data file, a folder of shards, or records in memory."""
        ...

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
        """These parts' share of the step's loss; `logprobs[p][c]` are those of part p's call c.

        Where the policy has a teacher, they are the tokens' divergences from it instead.
        """
        ...


@runtime_checkable
class Coupled(Protocol):
    """A method whose parts' losses depend on each other: its loss is asked for once a step, with all parts.

    What they depend on are totals over the parts of all processes.
    """

    def totals(
        self,
        parts: Sequence[Any],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
    ) -> Tensor:
        """Those of these parts, as a vector. Totals add up."""
        ...

    def loss(
        self,
        parts: Sequence[Any],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
        totals: Tensor | None = None,
    ) -> Loss:
        """A method's `loss`, given the totals of the whole step; by default those of these parts."""
        ...


def share(total: Tensor, denominator: float) -> Tensor:
    """`total` / `denominator`, where `denominator` is the whole optimizer step's, never the micro-batch's."""
    assert 0 < denominator < math.inf, f"the denominator is {denominator}; it counts what the whole step trains"
    return total / denominator


def float_vectors(*tensors: Tensor) -> list[Tensor]:
    """The same tensors in float32 or wider. All have one shape [N]: broadcasting would hide a mistake."""
    import torch

    shape = tensors[0].shape
    assert len(shape) == 1 and all(tensor.shape == shape for tensor in tensors), [t.shape for t in tensors]
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
