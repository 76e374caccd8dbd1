"""What a server has recorded, on disk: finished sessions as trajectories, and the calls of open ones.

    FOLDER/trajectories.jsonl     one finished session per line
    FOLDER/calls.jsonl            one call per line, of sessions that are still open

A call is on the disk before its request is answered, so a kill loses no finished call; the next
server in the folder resumes the open sessions. Many lines are written together, with one
sync for all. Lines of sessions that have ended are removed when the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter
from pydantic_core import from_json

from bough.data.base import Format, common_prefix, digest
from bough.data.reader import Reader
from bough.data.writer import Writer
from bough.engines.base import Answer
from bough.engines.server.chat import ChatRequest, RefusedError, validated
from bough.engines.server.session import RecordedCall, Session, SessionConfig, prompt_of
from bough.errors import BoughError, InputError, RowError
from bough.files import open_file, replacing
from bough.types import Call, Message, Task, Trajectory, Turn

TRAJECTORIES, CALLS = "trajectories.jsonl", "calls.jsonl"
Row = dict[str, Any]
RECORDED = TypeAdapter(RecordedCall)
log = logging.getLogger(__name__)


def _unread(row: Row) -> Trajectory:
    raise RowError("unknown_format", f"a line of the journal is not a record: {list(row)[:3]}")


JOURNAL = Format("calls", "calls of open sessions", lambda row: "session" in row, _unread, dict)


class Store:
    """The folder. One process may write to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trajectories = Writer(folder / TRAJECTORIES, batch=1 << 30, batch_s=float("inf"))
        try:
            self._journal = Writer(folder / CALLS, format=JOURNAL, batch=1 << 30, batch_s=float("inf"))
        except BaseException:
            self._trajectories.close()
            raise
        finished = Reader(folder / TRAJECTORIES, format="bough", on_error="skip")
        self.ended = {record.id for record in finished if isinstance(record, Trajectory)}
        self._pending = SimpleQueue[_Line]()
        self._disk = ThreadPoolExecutor(1, "bough-record")

    def open_sessions(self) -> dict[str, list[RecordedCall]]:
        """The calls of the sessions that an earlier process has left open."""
        found: dict[str, list[RecordedCall]] = {}
        with open_file(path := self.folder / CALLS) as file:
            for number, line in enumerate(file, 1):
                try:
                    row = from_json(line)
                    calls = found.setdefault(row["session"], [])
                    # After a call that could not be written, what refers to it cannot be used.
                    if row["session"] not in self.ended and row["number"] == len(calls):
                        calls.append(read_call(row, calls[-1] if calls else None))
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    raise InputError(f"{path}:{number} is damaged: {error}; move the file away") from None
        return {session: calls for session, calls in found.items() if calls}

    async def add_call(self, session: str, call: RecordedCall, before: RecordedCall | None) -> None:
        """Writes a finished call to the disk; `before` is the session's call before it."""
        await self._add({"session": session, **write_call(call, before)}, self._journal)

    async def add_trajectory(self, trajectory: Trajectory) -> None:
        """Writes a finished session to the disk."""
        await self._add(trajectory, self._trajectories)

    async def close(self) -> None:
        await asyncio.to_thread(self._disk.shutdown)
        self._journal.close()
        path = self.folder / CALLS
        try:
            with replacing(path) as draft, path.open("rb") as old, draft.open("wb") as new:
                new.writelines(line for line in old if from_json(line)["session"] not in self.ended)
        except Exception as error:  # such as a full disk or a damaged line: it stays as it is
            log.warning("%s could not be compacted: %s", path, error)
        self._trajectories.close()

    async def _add(self, what: Row | Trajectory, writer: Writer) -> None:
        line = _Line(what, writer)
        self._pending.put(line)
        await asyncio.get_running_loop().run_in_executor(self._disk, self._write)
        if line.failure is not None:
            raise line.failure

    def _write(self) -> None:
        """Writes all that is pending, with one sync for all. In the disk's only thread."""
        batch = [self._pending.get_nowait() for _ in range(self._pending.qsize())]
        for line in batch:
            try:
                line.writer.write(line.what)  # type: ignore[arg-type]  # the journal's format takes rows
            except Exception as error:  # the lines beside it must be written
                line.failure = error
        for writer in (self._journal, self._trajectories):
            try:
                writer.flush()
            except Exception as error:
                # Its clients read that it failed and may try again; written later, it would be recorded twice.
                writer.discard()
                for line in batch:
                    if line.writer is writer:
                        line.failure = line.failure or error


@dataclass(eq=False)
class _Line:
    what: Row | Trajectory
    writer: Writer
    failure: Exception | None = None


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


# All sessions of an endpoint: which are open, how they end, and what is kept of them.

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
MAX_SESSIONS = 20_000
MAX_IN_FLIGHT = 4096
TIMED_OUT = "session_timeout"


class Recorder:
    """Sessions by name.

    `config_of` says how the requests of a session are answered; without it only those that `open`
    has begun exist. `store` keeps calls and trajectories on disk. A session that is not used
    for `timeout_s` is closed and marked so. `agent` is the name of the model in the records.
    """

    def __init__(
        self,
        *,
        agent: str = "",
        config_of: Callable[[str], SessionConfig] | None = None,
        store: Store | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.agent, self.store, self.timeout_s = agent, store, timeout_s
        self._config_of = config_of
        self._sessions: dict[str, Session] = {}
        self._closed: dict[str, str] = dict.fromkeys(store.ended, "it has ended") if store else {}
        self._sweeping: asyncio.Task[None] | None = None
        self.in_flight = 0
        if store is not None and config_of is not None:
            for name, calls in store.open_sessions().items():
                session = self.open(name, config_of(name))
                for call in calls:
                    session.add(call)

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    def open(self, name: str, config: SessionConfig) -> Session:
        """Begins a session."""
        if len(self._sessions) >= MAX_SESSIONS:
            raise RefusedError(
                429, f"{MAX_SESSIONS:,} sessions are open; end some of them with POST /s/NAME/end", code="busy"
            )
        session = Session(name, config, self._keep if self.store else None)
        self._sessions[name] = session
        return session

    def session(self, name: str) -> Session:
        """The session of that name, begun now if it is new. Raises RefusedError if it is closed."""
        if NAME.fullmatch(name) is None:
            raise RefusedError(
                400, "a session's name has up to 128 letters, digits, dots, dashes or underscores", code="session_name"
            )
        if (found := self._sessions.get(name)) is not None and found.closed is None:
            return found
        if (why := found.closed if found is not None else self._closed.get(name)) is not None:
            raise RefusedError(
                409, f"session {name} is closed ({why}); use another session name", code="session_closed"
            )
        if self._config_of is None:
            raise RefusedError(404, f"there is no session {name}", code="session_unknown")
        return self.open(name, self._config_of(name))

    async def answer(self, name: str | None, request: ChatRequest) -> tuple[Answer, Message]:
        """The reply to a request. One without a session is recorded as a session of its own."""
        if self.in_flight >= MAX_IN_FLIGHT:
            raise RefusedError(429, f"{MAX_IN_FLIGHT} requests are in flight; try again later", code="busy")
        self.in_flight += 1
        try:
            if name is None:
                return await self._answer_alone(request)
            return await self.session(name).answer(request)
        finally:
            self.in_flight -= 1

    def refuse(self, name: str | None, refusal: RefusedError) -> None:
        """Notes that a request of a session could not be read."""
        if name is not None and (session := self._sessions.get(name)) is not None:
            session.refusal = str(refusal)

    async def end(self, name: str, outcome: SessionOutcome) -> Trajectory:
        """Closes a session into a trajectory. Requests in flight are cancelled."""
        if self._config_of is None:
            raise RefusedError(403, "the session ends when its agent function returns", code="session_end")
        session = self.session(name)
        if not session.calls:
            if not session.in_flight:  # it was only begun by this request
                self._sessions.pop(name, None)
            raise RefusedError(400, f"session {name} has no finished call to record", code="session_empty")
        why = "it timed out" if outcome.stop == TIMED_OUT else "it has ended"
        session.close(why)
        try:
            trajectory = await self._recorded(session, outcome)
        except BaseException:
            session.closed = None  # it can be ended again
            raise
        self._sessions.pop(name, None)
        if self.store is not None:
            self.store.ended.add(name)  # its calls in the journal are of no use any more
        self._closed[name] = why
        return trajectory

    async def _answer_alone(self, request: ChatRequest) -> tuple[Answer, Message]:
        if self._config_of is None:
            raise RefusedError(404, "this address needs a session: /s/NAME/v1", code="session_unknown")
        name = f"request-{secrets.token_hex(8)}"
        # Nothing is kept before the trajectory itself, which is on the disk before the request is answered.
        session = Session(name, self._config_of(name))
        try:
            reply = await session.answer(request)
            await self._recorded(session, SessionOutcome(stop="no_session"))
        finally:
            session.close("it was a single request")
        return reply

    async def _recorded(self, session: Session, outcome: SessionOutcome) -> Trajectory:
        trajectory = trajectory_of(session, outcome, agent=self.agent)
        if self.store is not None:
            try:
                await self.store.add_trajectory(trajectory)
            except Exception as error:
                raise _not_recorded(error) from error
        return trajectory

    def drop(self, session: Session) -> None:
        """Closes a session without a record."""
        session.close("it was dropped")
        self._sessions.pop(session.name, None)

    async def sweep(self) -> list[str]:
        """Closes the sessions that were not used for the time limit; their names."""
        assert self.timeout_s is not None
        limit = time.monotonic() - self.timeout_s
        unused = [one for one in self._sessions.values() if not one.in_flight and one.last_used < limit]
        # One that is closed is just ending, or has a call that could not be written: it cannot be ended here.
        old = [one for one in unused if one.closed is None]
        for session in old:
            if session.calls:
                await self.end(session.name, SessionOutcome(stop=TIMED_OUT))
            else:
                self.drop(session)
        return [session.name for session in old]

    def start(self) -> None:
        """Closes unused sessions from now on."""
        if self.timeout_s is not None:
            self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stops. Sessions that are open stay open in the store."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        for session in list(self._sessions.values()):
            session.close("the server is shutting down")
        self._sessions.clear()
        if self.store is not None:
            await self.store.close()

    async def _sweep(self) -> None:
        assert self.timeout_s is not None
        while True:
            await asyncio.sleep(min(self.timeout_s / 4, 30.0))
            with contextlib.suppress(BoughError):  # a full disk: they are tried again
                await self.sweep()

    async def _keep(self, session: Session, call: RecordedCall) -> None:
        assert self.store is not None
        before = session.calls[call.number - 1] if call.number else None
        try:
            await self.store.add_call(session.name, call, before)
        except Exception as error:
            # What follows would refer to a call that is not on the disk.
            session.close("one of its calls could not be written")
            raise _not_recorded(error) from error


def _not_recorded(error: Exception) -> RefusedError:
    return RefusedError(507, f"it could not be recorded: {str(error) or type(error).__name__}", code="not_recorded")


# From a session to a trajectory.
# The longest chain of calls, each continuing the one before, is the conversation. Every other call (a branch, a sub-
# agent, a repeated request) is a turn with a prompt of its own, at the place where it happened. All
# of them keep their exact tokens.


@dataclass(frozen=True)
class SessionOutcome:
    """How a session ended. `rewards` has the outcome, if it is known, and whatever else was measured."""

    success: bool | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    stop: str = "done"
    task: Task | None = None


def read_outcome(row: Mapping[str, Any]) -> SessionOutcome:
    """What a client says at the end of a session. Raises RefusedError where it is wrong."""
    given = validated(OutcomeBody, dict(row))
    reward = given.reward
    if reward is None and given.success is not None:
        reward = float(given.success)
    task = Task(id=given.task) if isinstance(given.task, str) else given.task
    return SessionOutcome(given.success, {"outcome": reward}, task=task)


class OutcomeBody(BaseModel):
    """What may be said at the end of a session."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")

    success: bool | None = None
    reward: float | None = None
    task: str | Task | None = None


def trajectory_of(session: Session, outcome: SessionOutcome, *, agent: str, id: str | None = None) -> Trajectory:
    """The record of a session that has at least one call, under its name unless another `id` is given."""
    calls = session.calls
    chain = _longest_chain(calls)
    on_chain = set(chain)
    first_followers = {call.parent: call.number for call in reversed(calls) if call.parent is not None}
    follows = first_followers | dict(pairwise(chain))
    first = calls[chain[0]]
    tools: list[dict[str, JsonValue]] = list(first.tools)
    turns = [
        Turn(
            reply=call.reply,
            call=call.call,
            error=call.error,
            observation=calls[follows[call.number]].messages if call.number in follows else [],
            prompt=None if call.number in on_chain else prompt_of(calls, call),
            tools=None if call.number in on_chain or call.tools == tools else list(call.tools),
        )
        for call in calls
    ]
    info: dict[str, JsonValue] = {
        "agent": agent,
        "prompt_tokens": sum(call.num_prompt_tokens for call in calls),
        "completion_tokens": sum(call.num_completion_tokens for call in calls),
    }
    if rewritten := sum(call.rewritten for call in calls):
        info["rewritten_prompts"] = rewritten
    return Trajectory(
        id=id or session.name,
        # Attempts that start alike are attempts at one task, unless the client knows better.
        task=outcome.task or Task(id=digest(*first.messages)),
        start=first.messages,
        turns=turns,
        tools=tools,
        rewards=dict(outcome.rewards),
        success=outcome.success,
        stop=outcome.stop,
        info=info,
    )


def _longest_chain(calls: list[RecordedCall]) -> list[int]:
    """The numbers of the calls of the longest chain; of equal ones the earliest."""
    length = [1] * len(calls)
    best: dict[int, int] = {}
    for call in reversed(calls):
        if call.parent is not None and length[call.number] + 1 >= length[call.parent]:
            length[call.parent], best[call.parent] = length[call.number] + 1, call.number
    roots = [call.number for call in calls if call.parent is None]
    at: int | None = max(roots, key=lambda number: (length[number], -number))
    chain = []
    while at is not None:
        chain.append(at)
        at = best.get(at)
    return chain
