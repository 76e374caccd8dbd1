"""Counts the tokens that would be trained, and finds what is wrong with the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from bough.chat.template import Built, CallBuilder
from bough.config.groups import MODEL, CallsConfig, ReportConfig
from bough.data.base import Sample, common_prefix
from bough.data.reader import Place, Problems, Reader, SourceConfig
from bough.data.trl import LABEL
from bough.errors import InputError
from bough.ledger import Ledger, plural
from bough.types import Call, Group, Pair, Trajectory, Turn, conversation


class DoctorConfig(ReportConfig):
    """Shows which tokens of a data file a model would be trained on, counts them, and reports problems.

    Exits with 2 if a row is bad, an answer does not fit, or nothing would be trained.
    """

    command = "doctor"

    source: SourceConfig
    model: str = Field("smollm2", description=MODEL)
    calls: CallsConfig = CallsConfig()
    samples: int = Field(1, ge=0, description="number of records to show token by token")
    limit: int = Field(1000, ge=1, description="number of records to tokenise")


# Template errors and the like come by the thousand or not at all; a few examples are enough.
EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """One finding about the whole file: "fail" means that it should not be trained on as it is."""

    level: Literal["fail", "warn"]
    name: str
    message: str


@dataclass
class Diagnosis:
    """Counts over the calls of many records."""

    builder: CallBuilder
    rows: Ledger = field(default_factory=lambda: Ledger("rows"))
    problems: Problems = field(default_factory=Problems)  # the rows that cannot be read
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))
    tokens: Counter[str] = field(default_factory=Counter)
    shortened: int = 0
    cut_off: int = 0
    followed: int = 0
    rewritten: int = 0
    recomputed: int = 0
    with_control_tokens: int = 0
    control_token: str = ""  # the first one found, and its place
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, sample: Sample, place: str) -> list[Call]:
        """Counts a record and its calls, and returns the calls."""
        self.rows.keep()
        calls: list[Call] = []
        spelled: str | None = None
        if isinstance(sample, Pair):
            units = [(sample.start, turns, sample.tools) for turns in (sample.chosen, sample.rejected)]
        else:
            attempts = sample.attempts if isinstance(sample, Group) else [sample]
            units = [(attempt.start, attempt.turns, attempt.tools) for attempt in attempts]
        for start, turns, tools in units:
            control = self.builder.template.control
            spelled = spelled or next(control.found(conversation(start, turns), tools), None)
            built = list(self.builder.build(start, turns, tools))
            self._count(built, turns, place)
            found = [each.call for each in built if each.call]
            if isinstance(sample, Trajectory) and sample.rewards.get(LABEL) == 0:
                self.tokens["labelled bad"] += sum(len(call.completion_ids) for call in found)
            calls += found
        if spelled is not None:
            self.with_control_tokens += 1
            self.control_token = self.control_token or f"{spelled} in {place}"
        self.tokens["computed"] += tree_size(calls)
        return calls

    def _count(self, built: list[Built], turns: list[Turn], place: str) -> None:
        previous: Built | None = None
        for each in built:
            if each.call is None:
                assert each.reason is not None
                self.calls.drop(each.reason)
                examples = self.examples.setdefault(each.reason, [])
                if len(examples) < EXAMPLES:
                    examples.append(f"{place}, turn {each.turn + 1}: {each.message}")
                continue
            self.calls.keep()
            self.tokens["trained"] += len(each.call.completion_ids)
            self.tokens["context"] += len(each.call.prompt_ids)
            self.shortened += each.dropped_steps > 0
            self.cut_off += each.call.completion_ids[-1] not in self.builder.template.stop_ids
            if (
                previous
                and previous.call
                and previous.turn == each.turn - 1
                and previous.dropped_steps == each.dropped_steps
                and turns[previous.turn].correction is None  # the reply that follows is another one
            ):
                before = previous.call.prompt_ids + previous.call.completion_ids
                lost = len(before) - common_prefix(before, each.call.prompt_ids)
                self.followed += 1
                self.rewritten += lost > 0
                self.recomputed += lost
            previous = each
        self.tokens["turns given as context"] += sum(not turn.trained for turn in turns)

    def findings(self) -> Iterator[Finding]:
        """What a user should know before training on this file."""
        builder, end_of_turn = self.builder, self.builder.template.end_of_turn
        bad, torn, listed = self.rows.dropped.total(), self.rows.dropped["torn"], "; ".join(self.problems.lines())
        if bad > torn:
            said = f"{bad} of {plural(self.rows.came_in, 'row')} cannot be read; training stops at them, or drops them"
            yield Finding("fail", "bad rows", f"{said} with --on-error skip: {listed}")
        elif torn:
            yield Finding("warn", "torn rows", f"{plural(torn, 'row is', 'rows are')} cut off: {listed}")
        for reason, examples in self.examples.items():
            if reason != "too_long":  # has a finding of its own
                said = f"{self.calls.dropped[reason]} of {plural(self.calls.came_in, 'call is', 'calls are')} dropped"
                yield Finding("warn", "dropped calls", f"{said} as {reason}, for example " + "; ".join(examples))
        if not self.tokens["trained"]:
            yield Finding("fail", "no trained token", "not one token of this file would be trained")
        if too_long := self.calls.dropped["too_long"]:
            first = f"; the first: {self.examples['too_long'][0]}"
            if builder.max_length is None:
                said = (
                    f"{plural(too_long, 'call is', 'calls are')} longer than the model's context of {builder.context}"
                )
                more = "tokens and would be dropped; --max-length drops the oldest steps of a long prompt instead"
                yield Finding("fail", "longer than the context", f"{said} {more}{first}")
            else:
                said = f"{plural(too_long, 'answer does', 'answers do')} not fit into max_length {builder.max_length}"
                more = "and would be dropped (Bough never cuts an answer); raise max_length"
                yield Finding("fail", "answer cut off", f"{said} {more}{first}")
        if self.cut_off:
            said = f"{plural(self.cut_off, 'recorded answer does', 'recorded answers do')} not end with {end_of_turn}"
            more = "cut off when sampled, and training on that teaches the model not to stop"
            yield Finding("fail", "answer cut off", f"{said}: {more}")
        if self.with_control_tokens:
            said = f"rows with control tokens in a message or a tool: {self.with_control_tokens}, the first"
            more = "they are encoded as plain text and neither open nor close a turn"
            yield Finding("warn", "control tokens in text", f"{said} {self.control_token}; {more}")
        if self.rewritten:
            share = self.recomputed / max(1, self.tokens["computed"])
            said = f"the template is not prefix-preserving: in {self.rewritten} of {plural(self.followed, 'call')} it"
            more = f"changes the text of the call before; correct, but {self.recomputed} tokens ({share:.0%}) are"
            yield Finding("warn", "history rewritten", f"{said} {more} computed twice")

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows.to_json(),
            "bad_rows": self.problems.to_json(),
            "calls": self.calls.to_json(),
            "tokens": dict(self.tokens),
            "calls_shortened": self.shortened,
            "rows_with_control_tokens": self.with_control_tokens,
            "findings": [vars(finding) for finding in self.findings()],
        }


def diagnose(
    config: DoctorConfig,
    builder: CallBuilder,
    seen: Callable[[str, list[Call]], None] = lambda _place, _calls: None,
    place_of: Callable[[Place], str] = str,
) -> Diagnosis:
    """The diagnosis of the settings' file, up to their limit of records.

    `seen` gets the place of each record, written by `place_of`, and its calls. A file without rows is an InputError.
    """
    diagnosis = Diagnosis(builder)
    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=diagnosis.problems.add)
    for number, sample in enumerate(reader, 1):
        place = place_of(reader.place)
        seen(place, diagnosis.add(sample, place))
        if number == config.limit:
            break
    for reason, count in diagnosis.problems.reasons.items():
        diagnosis.rows.drop(reason, count)
    if not diagnosis.rows.came_in:
        raise InputError(f"{config.source.file}: the file contains no rows")
    return diagnosis


def tree_size(calls: list[Call]) -> int:
    """Number of tokens of the calls, shared prefixes counted once."""
    sequences = sorted(call.prompt_ids + call.completion_ids for call in calls)
    shared = sum(common_prefix(left, right) for left, right in pairwise(sequences))
    return sum(map(len, sequences)) - shared
