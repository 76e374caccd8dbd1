"""Made-up episodes with the lengths of real ones, as token ids; all contenders read the same ids.

The mean lengths are those of a household task: at 30 rounds with a pair in each, 100,800
tokens one call at a time and 3,500 as a tree. What the ids say has no influence on time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bough.types import Call

Ids = list[int]


@dataclass(frozen=True)
class Lengths:
    """Mean lengths in tokens; each is drawn from within 40% of it, the start is as long as it is."""

    start: int = 442
    answer: int = 20
    observation: int = 64
    think: int = 0


@dataclass(frozen=True)
class Round:
    """What the model thought and answered, another answer that was worse, and what came back."""

    think: Ids
    answer: Ids
    worse: Ids
    observation: Ids


@dataclass(frozen=True)
class Episode:
    """The thoughts of a round are seen while it is answered and dropped from the history afterwards."""

    start: Ids
    rounds: list[Round]

    def calls(self) -> list[Call]:
        """One call a round: the history, and what was answered to it."""
        return [
            Call(prompt_ids=history, completion_ids=round.think + round.answer)
            for history, round in zip(self._histories(), self.rounds, strict=True)
        ]

    def pairs(self) -> list[tuple[Call, Call]]:
        """One pair a round: the same history, the better and the worse answer."""
        return [
            (Call(prompt_ids=h, completion_ids=r.answer), Call(prompt_ids=h, completion_ids=r.worse))
            for h, r in zip(self._histories(), self.rounds, strict=True)
        ]

    def row(self) -> tuple[Ids, list[bool]]:
        """The whole episode in one piece up to its last answer, and which of its tokens were answered."""
        assert not any(round.think for round in self.rounds), "with thoughts no single row is what the model saw"
        ids, answered = list(self.start), [False] * len(self.start)
        for i, round in enumerate(self.rounds):
            after = round.observation if i + 1 < len(self.rounds) else []
            ids += round.answer + after
            answered += [True] * len(round.answer) + [False] * len(after)
        return ids, answered

    def _histories(self) -> list[Ids]:
        found, history = [], self.start
        for round in self.rounds:
            found.append(history)
            history = history + round.answer + round.observation
        return found


class Source:
    """Draws episodes over a vocabulary; the same seed gives the same episodes."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self.vocabulary, self.random = vocabulary, np.random.default_rng(seed)

    def ids(self, length: int) -> Ids:
        # 0 stays out: it is what the contenders pad with.
        return self.random.integers(1, self.vocabulary, length).tolist()

    def about(self, mean: int) -> Ids:
        return self.ids(int(self.random.integers(round(0.6 * mean), round(1.4 * mean) + 1)))

    def round(self, lengths: Lengths) -> Round:
        return Round(*map(self.about, (lengths.think, lengths.answer, lengths.answer, lengths.observation)))

    def episode(self, rounds: int, lengths: Lengths, start: Ids | None = None) -> Episode:
        start = self.ids(lengths.start) if start is None else start
        return Episode(start, [self.round(lengths) for _ in range(rounds)])

    def attempts(self, count: int, rounds: int, lengths: Lengths) -> list[Episode]:
        """Attempts at one task: the same start, then each its own way."""
        start = self.ids(lengths.start)
        return [self.episode(rounds, lengths, start) for _ in range(count)]
