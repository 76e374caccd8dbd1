"""What the arms of `evolve_study.py` may use: the tokens that the evolve arm is expected to take.

The expectation comes from the demonstrations alone, before anything is trained, so that all arms can run at
the same time. The table of the study says how many tokens each arm really took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

from bough.methods.sft import SFT, SFTConfig
from bough.policy.load import load_call_builder
from bough.training.method import Example
from bough.trees.build import partition

SAMPLE = 64  # demonstrations that are counted
WHOLE = 1 << 30  # no tree is cut


class Sized(Protocol):
    """The sizes of an evolve arm."""

    @property
    def members(self) -> int: ...

    @property
    def generations(self) -> int: ...

    @property
    def steps(self) -> int: ...


@dataclass(frozen=True)
class Budget:
    """Tokens of the evolve arm: all of them, those of one update, and those of measuring one member."""

    tokens: float
    update: float
    measure: float

    @classmethod
    def of(cls, sizes: Sized, *, update: float, measure: float) -> Budget:
        each = sizes.steps * update + measure
        return cls(sizes.members * sizes.generations * each, update, measure)

    def steps(self, sizes: Sized, arm: str) -> int:
        """The updates of a member, in the first generation, with which an arm uses up the budget."""
        rounds = list(_rounds(sizes, arm))
        left = self.tokens - self.measure * sum(members for members, _ in rounds)
        return max(1, round(left / (self.update * sum(members * share for members, share in rounds))))


def _rounds(sizes: Sized, arm: str) -> Iterator[tuple[int, int]]:
    """The generations of an arm: how many members, and how many times the first one's updates each makes."""
    if arm != "halving":
        yield (1 if arm == "fixed" else sizes.members), 1
        return
    members, share = sizes.members, 1
    while True:
        yield members, share
        if members <= 2:
            return
        members, share = members // 2, 2 * share


@dataclass(frozen=True)
class Demonstrated:
    """Mean tokens of the demonstrations: of an answer, and of a tree of several records at a time."""

    examples: Sequence[Example]

    @classmethod
    def read(cls, file: Path, model: str) -> Demonstrated:
        config = SFTConfig(model=model, train_file=file)
        calls = config.calls
        builder = load_call_builder(model, calls.chat_template, max_length=calls.max_length, stride=calls.stride)
        return cls(list(SFT(config).examples(file, builder).examples[:SAMPLE]))

    @property
    def answered(self) -> float:
        """Tokens that the agent says in an episode."""
        return fmean(example.num_trained for example in self.examples)

    def of_batch(self, size: int) -> float:
        """Tokens computed in an update on `size` demonstrations."""
        starts = range(0, max(1, len(self.examples) - size + 1), size)
        return fmean(_tree_tokens(self.examples[start : start + size]) for start in starts)

    def of_group(self, size: int) -> float:
        """Tokens sampled and computed for a group of `size` attempts at one task, which share their first prompt."""
        start = fmean(len(example.calls[0].prompt_ids) for example in self.examples)
        return size * (self.answered + self.of_batch(1) - start) + start


def _tree_tokens(examples: Sequence[Example]) -> int:
    calls = [call for example in examples for call in example.calls]
    return sum(part.num_tokens for part in partition(calls, WHOLE))
