"""All sessions of an endpoint: which are open, how they end, and what is kept of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable

from bough.engines.base import Answer
from bough.errors import BoughError
from bough.serving.refusal import RefusedError
from bough.serving.request import ChatRequest
from bough.serving.session import OnText, RecordedCall, Session, SessionConfig
from bough.serving.store import Store
from bough.serving.trajectory import SessionOutcome, trajectory_of
from bough.types import Message, Trajectory

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

    async def answer(
        self, name: str | None, request: ChatRequest, on_text: OnText | None = None
    ) -> list[tuple[Answer, Message]]:
        """The replies to a request. One without a session is recorded as a session of its own.

        `on_text` receives the beginning of each reply while it is sampled, where the engine can do that.
        """
        if self.in_flight >= MAX_IN_FLIGHT:
            raise RefusedError(429, f"{MAX_IN_FLIGHT} requests are in flight; try again later", code="busy")
        self.in_flight += 1
        try:
            if name is None:
                return await self._answer_alone(request, on_text)
            return await self.session(name).answer(request, on_text)
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
            self.store.forget(name)
        if self._config_of is not None:
            self._closed[name] = why
        return trajectory

    async def _answer_alone(self, request: ChatRequest, on_text: OnText | None) -> list[tuple[Answer, Message]]:
        if self._config_of is None:
            raise RefusedError(404, "this address needs a session: /s/NAME/v1", code="session_unknown")
        name = f"request-{secrets.token_hex(8)}"
        # Nothing is kept before the trajectory itself, which is on the disk before the request is answered.
        session = Session(name, self._config_of(name))
        try:
            replies = await session.answer(request, on_text)
            await self._recorded(session, SessionOutcome(stop="no_session"))
        finally:
            session.close("it was a single request")
        return replies

    async def _recorded(self, session: Session, outcome: SessionOutcome) -> Trajectory:
        trajectory = trajectory_of(session, outcome, agent=self.agent)
        if self.store is not None:
            try:
                await self.store.add_trajectory(trajectory)
            except (BoughError, OSError) as error:
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

    async def _keep(self, session: Session, calls: list[RecordedCall]) -> None:
        assert self.store is not None
        first = calls[0].number
        try:
            await self.store.add_calls(session.name, calls, session.calls[first - 1] if first else None)
        except (BoughError, OSError) as error:
            # What follows would refer to a call that is not on the disk.
            session.close("one of its calls could not be written")
            raise _not_recorded(error) from error


def _not_recorded(error: Exception) -> RefusedError:
    return RefusedError(507, f"it could not be recorded: {error}", code="not_recorded")
