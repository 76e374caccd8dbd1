"""Counts the tokens that would be trained, and finds what is wrong with the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from bough.chat.builder import Built, CallBuilder
from bough.config.groups import MODEL, CallsConfig, ReportConfig
from bough.data.base import Sample
from bough.data.bough import common_prefix
from bough.data.reader import Place, Problems, Reader, SourceConfig
from bough.data.trl import LABEL
from bough.errors import InputError
from bough.ledger import Ledger, plural
from bough.types import Call, Group, Message, Pair, Trajectory, Turn, conversation


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
        self._look_for_control_tokens(sample, place)
        for start, turns, tools in _units(sample):
            built = list(self.builder.build(start, turns, tools))
            self._count(built, turns, place)
            found = [each.call for each in built if each.call]
            if isinstance(sample, Trajectory) and sample.rewards.get(LABEL) == 0:
                self.tokens["labelled bad"] += sum(len(call.completion_ids) for call in found)
            calls += found
        self.tokens["computed"] += tree_size(calls)
        return calls

    def _look_for_control_tokens(self, sample: Sample, place: str) -> None:
        for start, turns, tools in _units(sample):
            found = next(self.builder.template.control.found(conversation(start, turns), tools), None)
            if found is not None:
                self.with_control_tokens += 1
                self.control_token = self.control_token or f"{found} in {place}"
                return

    def _count(self, built: list[Built], turns: list[Turn], place: str) -> None:
        previous: Built | None = None
        for each in built:
            if each.call is None:
                self._drop(each, place)
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
                self._compare(previous.call, each.call)
            previous = each
        self.tokens["turns given as context"] += sum(not turn.trained for turn in turns)

    def _compare(self, earlier: Call, later: Call) -> None:
        before = earlier.prompt_ids + earlier.completion_ids
        lost = len(before) - common_prefix(before, later.prompt_ids)
        self.followed += 1
        self.rewritten += lost > 0
        self.recomputed += lost

    def _drop(self, built: Built, place: str) -> None:
        assert built.reason is not None
        self.calls.drop(built.reason)
        examples = self.examples.setdefault(built.reason, [])
        if len(examples) < EXAMPLES:
            examples.append(f"{place}, turn {built.turn + 1}: {built.message}")

    def findings(self) -> Iterator[Finding]:
        """What a user should know before training on this file."""
        yield from self._dropped()
        yield from self._not_trained()
        yield from self._about_the_template()

    def _dropped(self) -> Iterator[Finding]:
        bad, torn = self.rows.dropped.total(), self.rows.dropped["torn"]
        if bad > torn:
            yield Finding(
                "fail", "bad rows",
                f"{bad} of {plural(self.rows.came_in, 'row')} cannot be read; training stops at them, "
                "or drops them with --on-error skip: " + "; ".join(self.problems.lines()),
            )  # fmt: skip
        elif torn:
            yield Finding(
                "warn",
                "torn rows",
                f"{plural(torn, 'row is', 'rows are')} cut off: " + "; ".join(self.problems.lines()),
            )
        for reason, examples in self.examples.items():
            if reason != "too_long":  # has a finding of its own
                yield Finding(
                    "warn", "dropped calls",
                    f"{self.calls.dropped[reason]} of {plural(self.calls.came_in, 'call is', 'calls are')} dropped "
                    f"as {reason}, for example " + "; ".join(examples),
                )  # fmt: skip

    def _not_trained(self) -> Iterator[Finding]:
        if not self.tokens["trained"]:
            yield Finding("fail", "no trained token", "not one token of this file would be trained")
        too_long, builder = self.calls.dropped["too_long"], self.builder
        first = f"; the first: {self.examples['too_long'][0]}" if too_long else ""
        if too_long and builder.max_length is None:
            yield Finding(
                "fail", "longer than the context",
                f"{plural(too_long, 'call is', 'calls are')} longer than the model's context of "
                f"{builder.context} tokens and would be dropped; --max-length drops the oldest steps of a "
                f"long prompt instead{first}",
            )  # fmt: skip
        elif too_long:
            yield Finding(
                "fail", "answer cut off",
                f"{plural(too_long, 'answer does', 'answers do')} not fit into max_length "
                f"{self.builder.max_length} and would be dropped (Bough never cuts an answer); raise max_length{first}",
            )  # fmt: skip
        if self.cut_off:
            yield Finding(
                "fail", "answer cut off",
                f"{plural(self.cut_off, 'recorded answer does', 'recorded answers do')} not end with "
                f"{self.builder.template.end_of_turn}: cut off when sampled, and training on that teaches the model "
                "not to stop",
            )  # fmt: skip

    def _about_the_template(self) -> Iterator[Finding]:
        tokenizer = self.builder.template.tokenizer
        if self.with_control_tokens:
            yield Finding(
                "warn", "control tokens in text",
                f"rows with control tokens in a message or a tool: {self.with_control_tokens}, the first "
                f"{self.control_token}; they are encoded as plain text and neither open nor close a turn",
            )  # fmt: skip
        if self.rewritten:
            share = self.recomputed / max(1, self.tokens["computed"])
            yield Finding(
                "warn", "history rewritten",
                f"the template is not prefix-preserving: in {self.rewritten} of {plural(self.followed, 'call')} it "
                f"changes the text of the call before; correct, but {self.recomputed} tokens ({share:.0%}) are "
                "computed twice",
            )  # fmt: skip
        if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == self.builder.template.end_of_turn_id:
            yield Finding(
                "warn", "pad = eos",
                f"the pad token is the end-of-turn token {self.builder.template.end_of_turn}; "
                "harmless here (Bough never masks by pad id), but a trainer that does will not teach the model to stop",
            )  # fmt: skip

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


def _units(sample: Sample) -> Iterator[tuple[list[Message], list[Turn], list[dict[str, Any]]]]:
    """What is played from one start: its messages, its turns and its tools."""
    if isinstance(sample, Group):
        yield from ((attempt.start, attempt.turns, attempt.tools) for attempt in sample.attempts)
    elif isinstance(sample, Pair):
        yield sample.start, sample.chosen, sample.tools
        yield sample.start, sample.rejected, sample.tools
    else:
        yield sample.start, sample.turns, sample.tools
