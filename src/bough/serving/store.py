"""What a server has recorded, on disk: finished sessions as trajectories, and the calls of open ones.

    FOLDER/trajectories.jsonl     one finished session per line
    FOLDER/calls.jsonl            one call per line, of sessions that are still open

A call is on the disk before its request is answered, so a kill loses no finished call; the next
server in the folder resumes the open sessions. Many lines are written together, with one
sync for all. Lines of sessions that have ended are removed from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from bough.disk import replacing
from bough.errors import BoughError, InputError, RowError
from bough.formats.base import Format
from bough.formats.bough import common_prefix
from bough.serving.session import RecordedCall
from bough.trajectories.reader import Reader
from bough.trajectories.writer import Writer
from bough.types import Call, Trajectory

TRAJECTORIES, CALLS = "trajectories.jsonl", "calls.jsonl"
# The journal is rewritten when it has grown to this, and then to twice what was left.
COMPACT_BYTES = 64 << 20
Row = dict[str, Any]
RECORDED = TypeAdapter(RecordedCall)
log = logging.getLogger(__name__)


def _as_it_is(row: Any) -> Row:
    return dict(row)


def _unread(row: Row) -> Trajectory:
    raise RowError("unknown_format", f"a line of the journal is not a record: {list(row)[:3]}")


JOURNAL = Format("calls", "calls of open sessions", lambda row: "session" in row, _unread, _as_it_is)


class Store:
    """The folder. One process may write to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trajectories = Writer(folder / TRAJECTORIES, batch=1 << 30, batch_s=float("inf"))
        try:
            self._journal = self._open_journal()
        except BaseException:
            self._trajectories.close()
            raise
        self.ended = {record.id for record in self._read_trajectories()}
        self.compact_bytes = COMPACT_BYTES
        self._pending: list[tuple[Row | Trajectory, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, "bough-record")
        self._kept_bytes = 0

    def open_sessions(self) -> dict[str, list[RecordedCall]]:
        """The calls of the sessions that an earlier process has left open."""
        found: dict[str, list[RecordedCall]] = {}
        for row in _rows(path := self.folder / CALLS):
            calls = found.setdefault(row["session"], [])
            # After a call that could not be written, what refers to it cannot be used.
            if row["session"] in self.ended or row.get("number") != len(calls):
                continue
            try:
                calls.append(read_call(row, calls[-1] if calls else None))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                where = f"{path}: call {len(calls)} of session {row['session']:.128}"
                raise InputError(f"{where} is damaged: {error}; move the file away") from None
        return {session: calls for session, calls in found.items() if calls}

    async def add_calls(self, session: str, calls: Iterable[RecordedCall], before: RecordedCall | None) -> None:
        """Writes finished calls to the disk; `before` is the session's call before the first of them."""
        rows = []
        for call in calls:
            rows.append({"session": session, **write_call(call, before)})
            before = call
        await asyncio.gather(*map(self._added, rows))

    async def add_trajectory(self, trajectory: Trajectory) -> None:
        """Writes a finished session to the disk."""
        await self._added(trajectory)

    def forget(self, session: str) -> None:
        """A session has ended: its calls in the journal are of no use any more."""
        self.ended.add(session)

    async def close(self) -> None:
        while self._flushing is not None:
            await self._flushing
        self._disk.shutdown()
        if (self.folder / CALLS).stat().st_size:
            self._try_compact(self.ended)
        self._trajectories.close()
        self._journal.close()

    def _added(self, what: Row | Trajectory) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((what, done))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return done

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                try:
                    failed = await loop.run_in_executor(self._disk, self._write, [what for what, _ in batch])
                except Exception as error:
                    failed = dict.fromkeys(range(len(batch)), error)
                for number, (_, done) in enumerate(batch):
                    if done.cancelled():
                        continue
                    if number in failed:
                        done.set_exception(failed[number])
                    else:
                        done.set_result(None)
                if self._has_grown:
                    await loop.run_in_executor(self._disk, self._try_compact, set(self.ended))
        finally:
            self._flushing = None

    def _write(self, batch: list[Row | Trajectory]) -> dict[int, Exception]:
        """Writes a batch; the errors of those that cannot be written, by their place in it."""
        failed: dict[int, Exception] = {}
        for number, what in enumerate(batch):
            try:
                self._writer_of(what).write(what)  # type: ignore[arg-type]  # the journal's format takes rows
            except RowError as error:
                failed[number] = BoughError(f"it cannot be recorded: {error}")
        for writer in (self._journal, self._trajectories):
            try:
                writer.flush()
            except (BoughError, OSError) as error:
                # Its clients read that it failed and may try again; written later, it would be recorded twice.
                writer.discard()
                failed |= {number: error for number, what in enumerate(batch) if self._writer_of(what) is writer}
        return failed

    def _writer_of(self, what: Row | Trajectory) -> Writer:
        return self._trajectories if isinstance(what, Trajectory) else self._journal

    @property
    def _has_grown(self) -> bool:
        size = (self.folder / CALLS).stat().st_size
        return size > self._kept_bytes and size >= max(self.compact_bytes, 2 * self._kept_bytes)

    def _try_compact(self, ended: set[str]) -> None:
        """Compacts the journal. Where that fails, as on a full disk, it stays as it is and grows on."""
        try:
            self._compact(ended)
        except (BoughError, OSError, ValueError) as error:
            log.warning("%s could not be compacted: %s", self.folder / CALLS, error)
            self._kept_bytes = (self.folder / CALLS).stat().st_size

    def _compact(self, ended: set[str]) -> None:
        """Removes the calls of ended sessions from the journal."""
        path = self.folder / CALLS
        with replacing(path) as draft, path.open("rb") as old, draft.open("wb") as new:
            for line in old:
                if from_json(line)["session"] not in ended:
                    new.write(line)
        self._journal.close()
        self._journal = self._open_journal()
        self._kept_bytes = path.stat().st_size

    def _open_journal(self) -> Writer:
        return Writer(self.folder / CALLS, format=JOURNAL, batch=1 << 30, batch_s=float("inf"))

    def _read_trajectories(self) -> Iterator[Trajectory]:
        reader = Reader(self.folder / TRAJECTORIES, format="bough", on_error="skip")
        return (record for record in reader if isinstance(record, Trajectory))


def write_call(call: RecordedCall, before: RecordedCall | None) -> Row:
    """A call as a line of the journal. Its prompt is written from where it differs from the call before it."""
    row: Row = {
        "number": call.number,
        "parent": call.parent,
        "messages": [message.model_dump(exclude_defaults=True) for message in call.messages],
        "tools": call.tools,
        "reply": call.reply.model_dump(exclude_defaults=True),
        "tokens": [call.num_prompt_tokens, call.num_completion_tokens],
        "digests": [call.conversation, call.shown, call.exact],
    }
    if call.error is not None:
        row["error"] = call.error
    if call.rewritten:
        row["rewritten"] = True
    if call.call is not None:
        shared = common_prefix(_sequence(before), call.call.prompt_ids)
        values = call.call.model_dump(exclude_defaults=True, exclude={"prompt_ids"})
        row["call"] = {**values, "prompt_ids": call.call.prompt_ids[shared:]}
        row["shared"] = shared
    return row


def read_call(row: Row, before: RecordedCall | None) -> RecordedCall:
    """The inverse of `write_call`."""
    call = None
    if "call" in row:
        call = Call.model_validate(row["call"])
        if not 0 <= row["shared"] <= len(_sequence(before)):
            raise ValueError(f"it shares {row['shared']} tokens with the call before it")
        call.prompt_ids[:0] = _sequence(before)[: row["shared"]]
    if row["parent"] is not None and not 0 <= row["parent"] < row["number"]:
        raise ValueError(f"it continues call {row['parent']}")
    values = {name: row[name] for name in ("number", "parent", "messages", "tools", "reply")}
    values |= zip(("num_prompt_tokens", "num_completion_tokens"), row["tokens"], strict=True)
    values |= zip(("conversation", "shown", "exact"), row["digests"], strict=True)
    return RECORDED.validate_python(
        {**values, "call": call, "error": row.get("error"), "rewritten": row.get("rewritten", False)}
    )


def _sequence(call: RecordedCall | None) -> list[int]:
    return [] if call is None or call.call is None else call.call.prompt_ids + call.call.completion_ids


def _rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = from_json(line)
                assert isinstance(row, dict) and isinstance(row["session"], str)
            except (ValueError, KeyError, AssertionError, ValidationError) as error:
                raise InputError(f"{path}:{number}: not a line of a journal: {error}; move the file away") from None
            yield row
