"""From a data file to examples: read, build the calls, and account for every row and call."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic_core import to_json

from bough.calls.builder import CallBuilder
from bough.config.training import TrainingConfig
from bough.errors import InputError, RowError
from bough.formats.base import Sample, digest
from bough.ledger import Ledger
from bough.terminal.console import printable, progress
from bough.training.objective import Example
from bough.trajectories.reader import Problem, Reader
from bough.types import Call, Message, Turn, split_conversation

log = logging.getLogger(__name__)
PROBLEMS_SHOWN = 20
E = TypeVar("E", bound=Example)


@dataclass
class Examples(Generic[E]):
    """The examples of a file and what became of its rows and calls.

    `digest` is of the records and the tokens of the examples: the same data, read in the same way.
    """

    examples: list[E] = field(default_factory=list)
    rows: Ledger = field(default_factory=lambda: Ledger("rows"))
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))
    digest: str | None = None


class CallSource:
    """Builds the calls of turns and enters them in the ledger."""

    def __init__(self, builder: CallBuilder, ledger: Ledger) -> None:
        self.builder, self.ledger = builder, ledger

    def calls(self, start: list[Message], turns: list[Turn], tools: list[dict[str, Any]]) -> dict[int, Call]:
        """The calls of the trained turns, by turn; those that cannot be trained are dropped with their reason."""
        found = {}
        for built in self.builder.build(start, turns, tools):
            if built.call is None:
                assert built.reason is not None
                self.ledger.drop(built.reason)
            else:
                self.ledger.keep()
                found[built.turn] = built.call
        return found


def read_examples(
    file: Path, config: TrainingConfig, builder: CallBuilder, make: Callable[[Sample, CallSource], E]
) -> Examples[E]:
    """Every row of `file` as an example, or in the ledger with the reason why not.

    `make` raises RowError for a record that cannot be trained on. With on_error "stop",
    rows that cannot be read stop everything, all of them named; a record that can be read
    but has nothing to train on is always only counted.
    """
    found: Examples[E] = Examples()
    hasher = hashlib.sha256()
    problems: list[Problem] = []
    reader = Reader(file, format=config.format, on_error="skip", on_problem=problems.append)
    with progress(f"reading {file.name}") as bar:
        for sample in reader:
            place = f"{reader.place.file}:{reader.place.line}"
            calls = Ledger("calls")
            try:
                example = make(sample, CallSource(builder, calls))
                found.examples.append(replace(example, place=place))
                found.rows.keep()
                hasher.update(to_json([sample, [(call.prompt_ids, call.completion_ids) for call in example.calls]]))
                enter_calls(found.calls, calls, len(example.calls), "no_weight")
            except RowError as error:
                found.rows.drop(error.reason)
                enter_calls(found.calls, calls, 0, error.reason)
                if error.reason == "wrong_kind":
                    problems.append(Problem(reader.place.file, reader.place.line, error.reason, str(error)))
            bar.advance(bar.task_ids[0])
    for reason, count in reader.skipped.items():
        found.rows.drop(reason, count)
    fatal = [problem for problem in problems if problem.reason != "torn"]
    if fatal and config.on_error == "stop":
        shown = [printable(str(problem)) for problem in fatal[:PROBLEMS_SHOWN]]
        more = [f"and {len(fatal) - PROBLEMS_SHOWN} more"] if len(fatal) > PROBLEMS_SHOWN else []
        raise InputError(f"{file} has {len(fatal)} bad rows (--on-error skip leaves them out):", shown + more)
    if not found.examples:
        raise InputError(f"{file}: not one row can be trained on: {found.rows}; {found.calls}")
    if too_long := found.calls.dropped["too_long"]:
        log.warning("%s: %d calls are longer than %s and are dropped as too_long.", file, too_long, builder.limit)
    found.digest = hasher.hexdigest()
    return found


def enter_calls(ledger: Ledger, of_row: Ledger, trained: int, reason: str) -> None:
    """Enters a row's calls: `trained` of them are kept, the other good ones are dropped for `reason`."""
    ledger.keep(trained)
    for why, count in (of_row.dropped + Counter({reason: of_row.kept - trained})).items():
        ledger.drop(why, count)


def by_difficulty(examples: Sequence[E], rewards: Sequence[float | None]) -> list[E]:
    """The examples with their difficulty set: short and highly rewarded is easy.

    Difficulty is the mean of two ranks, by trained tokens (fewest first) and by reward
    (highest first); an example without a reward ranks in the middle.
    """
    if not examples:
        return []
    lengths = _ranks([float(example.num_trained) for example in examples])
    losses = _ranks([None if reward is None else -reward for reward in rewards])
    return [replace(e, difficulty=(a + b) / 2) for e, a, b in zip(examples, lengths, losses, strict=True)]


def _ranks(values: Sequence[float | None]) -> list[float]:
    known = sorted({value for value in values if value is not None})
    rank = {value: i / max(1, len(known) - 1) for i, value in enumerate(known)}
    return [0.5 if value is None else rank[value] for value in values]


def head_of(start: list[Message]) -> str:
    """A name for the episode that a history belongs to: what was said before the first reply."""
    return digest(*split_conversation(start)[0])
