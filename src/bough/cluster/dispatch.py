"""Which worker plays an attempt: the one that would finish it first, or one that plays nothing else meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from bough.cluster.remote_worker import Place, RemoteWorker

# Weight of the newest episode in a worker's seconds per episode.
NEWEST = 0.3


@dataclass(eq=False)
class Member:
    """A worker that is ready. `seconds` is how long an episode takes on it; `alone` is set while one has it alone."""

    remote: RemoteWorker
    place: Place
    in_flight: int = 0
    seconds: float | None = None
    alone: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, seconds: float) -> None:
        """An episode on it has taken so long."""
        self.seconds = seconds if self.seconds is None else (1 - NEWEST) * self.seconds + NEWEST * seconds


@dataclass(eq=False)
class _Waiting:
    """Someone who waits for a worker, perhaps for one that is reserved and is finishing its other episodes."""

    future: asyncio.Future[Member]
    reserved: Member | None = None


class Dispatcher:
    """Hands out workers. A worker plays up to `most` episodes at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.members: list[Member] = []
        self.failure: Exception | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_alone: deque[_Waiting] = deque()

    async def take(self, *, alone: bool) -> Member:
        """Waits for a worker, if `alone` for one without other episodes. Raises the `failure` that ends the wait."""
        if self.failure is not None:
            raise self.failure
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        queue = self._waiting_alone if alone else self._waiting
        queue.append(waiting)
        self.hand_out()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting in queue:
                queue.remove(waiting)
                if waiting.reserved is not None:
                    waiting.reserved.alone = False
            elif not waiting.future.cancelled() and waiting.future.exception() is None:
                self.give_back(waiting.future.result(), alone=alone)
            self.hand_out()
            raise

    def give_back(self, member: Member, *, alone: bool) -> None:
        """An episode on it has ended."""
        member.in_flight -= 1
        if alone:
            member.alone = False
        self.hand_out()

    def add(self, member: Member) -> None:
        """One more worker is ready."""
        self.members.append(member)
        self.hand_out()

    def remove(self, member: Member) -> bool:
        """The worker is gone. False if that was known."""
        if member.lost.is_set():
            return False
        member.lost.set()
        self.members.remove(member)
        self.hand_out()
        return True

    def fail(self, error: Exception) -> None:
        """All who wait for a worker, or will, get this error."""
        self.failure = error
        for waiting in (*self._waiting, *self._waiting_alone):
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._waiting.clear()
        self._waiting_alone.clear()

    def hand_out(self) -> None:
        """Gives workers to those who wait, as far as there are any."""
        for waiting in list(self._waiting_alone):
            if waiting.reserved is None or waiting.reserved.lost.is_set():
                waiting.reserved = self._reserve()
            if waiting.reserved is not None and not waiting.reserved.in_flight:
                self._waiting_alone.remove(waiting)
                _assign(waiting, waiting.reserved)
        while self._waiting and (member := self._quickest()) is not None:
            _assign(self._waiting.popleft(), member)

    def _reserve(self) -> Member | None:
        """The worker with the fewest episodes; half of the workers stay for other attempts."""
        free = [member for member in self.members if not member.alone]
        if len(free) <= len(self.members) // 2:
            return None
        chosen = min(free, key=lambda member: member.in_flight)
        chosen.alone = True
        return chosen

    def _quickest(self) -> Member | None:
        """The worker that would finish one more episode first; a slow one is given fewer."""
        free = [member for member in self.members if not member.alone and member.in_flight < self.most]
        known = [member.seconds for member in self.members if member.seconds is not None]
        usual = fmean(known) if known else 1.0

        def finish(member: Member) -> float:
            return (usual if member.seconds is None else member.seconds) * (member.in_flight + 1)

        return min(free, key=finish, default=None)


def _assign(waiting: _Waiting, member: Member) -> None:
    if waiting.future.done():  # cancelled just now
        if waiting.reserved is not None:
            member.alone = False
        return
    member.in_flight += 1
    waiting.future.set_result(member)
