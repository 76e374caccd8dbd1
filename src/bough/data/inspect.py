"""Samples of inspect_ai's logs: what an evaluation's agent said and how it was scored.

The second half of this file opens the log and gives one row per sample: `eval`, the head of the
log, and `sample`. Scores are rewards under their scorer's name: C (correct) is 1, P (partial)
0.5, I (incorrect) and N (no answer) 0, numbers and true or false as they are; the parts of a score that is an
object are `scorer/part`. The first score that says C, I, true or false is the episode's success.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from pydantic_core import from_json

from bough.data import compressed
from bough.data.base import Format, Row, field, finite, jsonable, name, optional, reader, split_turns, typed
from bough.data.messages import ROLES, read_part
from bough.errors import RowError
from bough.types import Message, Task, ToolCall, Trajectory

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
ATTACHMENT = "attachment://"


@reader
def read(row: Row) -> Trajectory:
    """The trajectory of a sample. Replies that came with the input are context."""
    sample: Row = field(row, "sample", dict)
    head: Row = optional(row, "eval", dict) or {}
    attached: Row = optional(sample, "attachments", dict) or {}
    said: list[Row] = field(sample, "messages", list)
    messages = [_read_message(message, f"messages[{i}]", attached) for i, message in enumerate(said)]
    trained = [m.get("source") != "input" for m, read in zip(said, messages, strict=True) if read.role == "assistant"]
    start, turns = split_turns(messages, trained=trained)
    task, epoch = optional(head, "task", str), optional(sample, "epoch", int)
    number = name(sample, "id") or "unnamed"
    rewards, success = _read_scores(optional(sample, "scores", dict) or {})
    data = {key: sample[key] for key in ("target", "metadata") if sample.get(key)}
    known = {"inspect_task": task, "epoch": epoch, "model": optional(head, "model", str)}
    return Trajectory(
        id=name(sample, "uuid") or f"{task}/{number}/{epoch}",
        task=Task(id=f"{task}/{number}" if task else number, data=jsonable(data)),
        start=start,
        turns=turns,
        tools=_read_tools(sample),
        rewards=rewards,
        success=success,
        stop=_stop(sample),
        info=jsonable({key: value for key, value in known.items() if value is not None}),
    )


def _read_message(value: Any, what: str, attached: Row) -> Message:
    message: Row = typed(value, dict, what)
    where = f"{what} "
    role = ROLES.get(field(message, "role", str, where))
    if role is None:
        raise RowError("wrong_type", f'{where}"role" is {message["role"]!r:.40}; it must be one of {", ".join(ROLES)}')
    content = optional(message, "content", (str, list), where) or ""
    reasoning = None
    if isinstance(content, list):
        parts = [typed(part, dict, f"{where}content[{i}]") for i, part in enumerate(content)]
        thought = [field(part, "reasoning", str, where) for part in parts if part.get("type") == "reasoning"]
        reasoning = "".join(_whole(text, attached) for text in thought) or None
        shown = [part for part in parts if part.get("type") != "reasoning"]
        content = "".join(_whole(read_part(part, f"{where}content"), attached) for part in shown)
    calls = optional(message, "tool_calls", list, where) or []
    return Message(
        role=role,
        content=_whole(content, attached),
        reasoning=reasoning,
        tool_calls=[_read_call(call, f"{where}tool_calls[{i}]") for i, call in enumerate(calls)],
        tool_call_id=optional(message, "tool_call_id", str, where),
        name=optional(message, "function", str, where),
    )


def _whole(text: str, attached: Row) -> str:
    """A text, or what stands in its place among the attachments: inspect moves long texts there."""
    if not text.startswith(ATTACHMENT):
        return text
    found: str = field(attached, text.removeprefix(ATTACHMENT), str, "attachments ")
    return found


def _read_call(value: Any, what: str) -> ToolCall:
    call: Row = typed(value, dict, what)
    if call.get("parse_error"):
        raise RowError("wrong_type", f"{what} is a tool call that inspect could not parse")
    arguments = optional(call, "arguments", dict, f"{what} ") or {}
    return ToolCall(
        name=field(call, "function", str, f"{what} "),
        arguments=jsonable(arguments),
        id=optional(call, "id", str, f"{what} "),
    )


def _read_tools(sample: Row) -> list[Row]:
    """The tools of the first use of the model that had any."""
    for event in optional(sample, "events", list) or []:
        if isinstance(event, dict) and event.get("event") == "model" and event.get("tools"):
            tools = [typed(tool, dict, "events tools") for tool in typed(event["tools"], list, "events tools")]
            known = ("name", "description", "parameters")
            return [
                jsonable({"type": "function", "function": {key: tool[key] for key in known if key in tool}})
                for tool in tools
            ]
    return []


def _read_scores(scores: Row) -> tuple[dict[str, float], bool | None]:
    rewards: dict[str, float] = {}
    success: bool | None = None
    for scorer, score in zip(map(jsonable, scores), scores.values(), strict=True):
        value = typed(score, dict, f'scores "{scorer}"').get("value")
        parts = {f"{scorer}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {scorer: value}
        for key, part in parts.items():
            found = VALUES.get(part) if isinstance(part, str) else part
            if isinstance(found, bool | int | float):
                rewards[jsonable(key)] = float(found) if isinstance(found, bool) else finite(found, f'scores "{key}"')
        if success is None and (isinstance(value, bool) or value in ("C", "I")):
            success = value in (True, "C")
    return rewards, success


def _stop(sample: Row) -> str | None:
    """What ended the episode: an error of the evaluation, or a limit."""
    if sample.get("error"):
        return "error"
    limit = optional(sample, "limit", dict)
    return f"limit_{field(limit, 'type', str, 'limit ')}" if limit else None


FORMAT = Format(
    name="inspect",
    about="a sample of an inspect_ai log (.eval): messages, tools, scores",
    matches=lambda row: isinstance(row.get("sample"), dict) and isinstance(row.get("eval"), dict),
    read=read,
)


# The samples of an inspect_ai log: a .eval file, which is a ZIP archive.
# It has `header.json` and `samples/ID_epoch_N.json`; one sample at a time is in memory. Nothing in it is executed.

# What inspect's other readers know as a log.
HEADER, START, SAMPLES = "header.json", "_journal/start.json", "samples/"
ZSTANDARD = 93  # the number of the method in ZIP; Python's zipfile does not know it before 3.14
# What Python's zipfile unpacks step by step. It unpacks bzip2 and LZMA at once, however large the result.
PYTHON_UNPACKS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The fixed part of the head of each entry, before its name.
LOCAL_HEADER = 30
Sample = tuple[int, dict[str, Any] | RowError]


def archive_samples(file: IO[bytes], longest: int, most: int) -> Iterator[Sample]:
    """The samples of a .eval file, in the order in which they were written.

    None is larger than `longest` bytes, all together not larger than `most`.
    """
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise RowError("damaged", "not a complete .eval file: its ZIP archive has no table of contents") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    head = next((entries[name] for name in (HEADER, START) if name in entries), None)
    samples = [entry for name, entry in entries.items() if name.startswith(SAMPLES) and name.endswith(".json")]
    if head is None:
        listed = ", ".join(list(entries)[:3]) or "nothing"
        raise RowError("damaged", f"not an inspect_ai log: the archive contains {listed:.120}, not {HEADER}")
    entry_reader = _Entries(archive, file, longest, most)
    begin = entry_reader.parsed(head)
    evaluated = begin.get("eval") if isinstance(begin, dict) else begin
    for number, entry in enumerate(samples, 1):
        found = entry_reader.parsed(entry)
        if isinstance(found, RowError):
            yield number, found
        else:
            yield number, {"eval": evaluated if isinstance(evaluated, dict) else {}, "sample": found}


@dataclass
class _Entries:
    """The contents of an archive, within limits: its own sizes may be wrong, and its entries may overlap."""

    archive: zipfile.ZipFile
    file: IO[bytes]
    longest: int
    left: int

    def parsed(self, entry: zipfile.ZipInfo) -> Any:
        """The JSON value of an entry, or what is wrong with it. Raises RowError for an archive that is a bomb."""
        try:
            text = self._unpacked(entry)
            self.left -= len(text)
            if self.left >= 0 and len(text) <= self.longest:
                return from_json(text)
        except (OSError, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError, zipfile.BadZipFile) as e:
            return RowError("damaged", f"{entry.filename} cannot be read: {e}")
        if self.left < 0:
            raise RowError("damaged", "it unpacks to far more than its size; it is not a data file")
        return RowError("too_large", f"{entry.filename} is larger than {self.longest >> 20} MiB")

    def _unpacked(self, entry: zipfile.ZipInfo) -> bytes:
        """The content of an entry, at most one byte more than `longest`."""
        if entry.compress_type in PYTHON_UNPACKS:
            with self.archive.open(entry) as content:
                return content.read(self.longest + 1)
        if entry.compress_type != ZSTANDARD:
            raise NotImplementedError(f"compression method {entry.compress_type} is not one that inspect_ai writes")
        file = self.file
        file.seek(entry.header_offset)
        head = file.read(LOCAL_HEADER)
        if len(head) < LOCAL_HEADER or head[:4] != b"PK\x03\x04":
            raise OSError("its header is absent")
        file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), 1)
        text = bytearray()
        for piece, _ in compressed.unpack(io.BytesIO(file.read(min(entry.compress_size, self.longest)))):
            text += piece
            if len(text) > self.longest:
                break
        return bytes(text)
