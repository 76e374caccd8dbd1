"""From data to examples: read the records, build their calls, and count every row and call that is kept or dropped."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from bough.errors import InputError, RowError
from bough.formats.base import Sample, digest
from bough.ledger import Ledger
from bough.methods.base import Data, Example, Examples
from bough.trajectories.problems import Problem, Problems
from bough.trajectories.reader import Reader
from bough.types import Call, Message, Turn, split_conversation

if TYPE_CHECKING:
    from bough.calls.builder import CallBuilder
    from bough.config.training import TrainingConfig

log = logging.getLogger(__name__)
# How error messages name records that are not on file.
# The name of data that is given in Python, where settings and records name a file.
IN_MEMORY = "records"
E = TypeVar("E", bound=Example)


class CallSource:
    """Builds the calls of turns and counts them."""

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


class _File:
    """The records of a data file or of a folder of shards, with the place of each."""

    def __init__(self, path: Path, format: str) -> None:
        self.name, self.short_name, self.problems = str(path), path.name, list[Problem]()
        self._reader = Reader(path, format=format, on_error="skip", on_problem=self.problems.append)

    def __iter__(self) -> Iterator[tuple[Sample, str, int]]:
        for sample in self._reader:
            yield sample, self._reader.place.file, self._reader.place.line

    @property
    def skipped(self) -> Counter[str]:
        return self._reader.skipped


class _Records:
    """Records in memory, numbered from 1 as the lines of a file are."""

    def __init__(self, records: Iterable[Sample]) -> None:
        self.name = self.short_name = IN_MEMORY
        self.problems, self.skipped, self._records = list[Problem](), Counter[str](), records

    def __iter__(self) -> Iterator[tuple[Sample, str, int]]:
        for number, sample in enumerate(self._records, 1):
            yield sample, IN_MEMORY, number


def examples_from(
    data: Data, config: TrainingConfig, builder: CallBuilder, make: Callable[[Sample, CallSource], E]
) -> Examples[E]:
    """Every record of `data` as an example, or counted in the ledger with the reason why not.

    `make` raises RowError for a record that cannot be trained on. With on_error "stop",
    all rows that cannot be read are reported in one error; a record that can be read but
    has nothing to train on is always only counted.
    """
    from bough.terminal.console import progress

    source = _File(Path(data), config.data.format) if isinstance(data, str | Path) else _Records(data)
    found: Examples[E] = Examples(source.name)
    hasher = hashlib.sha256()
    with progress(f"reading {source.short_name}") as bar:
        for sample, file, line in source:
            calls = Ledger("calls")
            try:
                example = make(sample, CallSource(builder, calls))
                found.examples.append(replace(example, place=f"{file}:{line}"))
                found.rows.keep()
                hasher.update(to_json([sample, [(call.prompt_ids, call.completion_ids) for call in example.calls]]))
                count_calls(found.calls, calls, len(example.calls), "no_weight")
            except RowError as error:
                found.rows.drop(error.reason)
                count_calls(found.calls, calls, 0, error.reason)
                if error.reason == "wrong_kind":
                    source.problems.append(Problem(file, line, error.reason, str(error)))
            bar.advance(bar.task_ids[0])
    for reason, count in source.skipped.items():
        found.rows.drop(reason, count)
    if config.data.on_error == "stop":
        _stop_at_bad_rows(source.name, source.problems)
    if not found.examples:
        raise InputError(f"{source.name}: no row can be trained on: {found.rows}; {found.calls}")
    if too_long := found.calls.dropped["too_long"]:
        log.warning("%s: dropped %d calls longer than %s (too_long).", source.name, too_long, builder.limit)
    found.digest = hasher.hexdigest()
    return found


def _stop_at_bad_rows(name: str, problems: Sequence[Problem]) -> None:
    """InputError that lists the bad rows, if there are any. The last line of a file may have been cut off by a kill."""
    from bough.terminal.console import printable

    fatal = [problem for problem in problems if problem.reason != "torn"]
    if fatal:
        grouped = Problems()
        for problem in fatal:
            grouped.add(problem)
        bad = "1 bad row" if len(fatal) == 1 else f"{len(fatal)} bad rows"
        raise InputError(f"{name} has {bad} (drop with --on-error skip):", map(printable, grouped.lines()))


def count_calls(ledger: Ledger, of_row: Ledger, trained: int, reason: str) -> None:
    """Counts a row's calls: `trained` of them are kept, the other good ones are dropped for `reason`."""
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
