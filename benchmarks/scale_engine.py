"""An engine of the simulator and the episodes in it, and which engine gets the next episode."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from benchmarks.scale_admission import Group
from benchmarks.scale_model import Engine

NO_WEIGHTS = -(10**9)


class Episode:
    """An attempt: its tokens, its waits for the environment, when it began and how often.

    Where environments take no time, its turns are one long turn.
    """

    __slots__ = ("began", "group", "plays", "tokens", "turn", "version", "waits")

    def __init__(self, group: Group, tokens: float, waits: list[float]) -> None:
        self.group, self.tokens, self.waits = group, tokens, waits
        self.began, self.version, self.plays, self.turn = 0.0, 0, 0, 0

    @property
    def turn_tokens(self) -> float:
        return self.tokens / (len(self.waits) or 1)


class Actor:
    """An engine with its weights. `count` is the number of tokens that an episode got that was there from the start.

    `held` are the episodes in its slots, `ends` those of them that decode, by the count at
    which they end; the others wait for their environments.
    """

    def __init__(self, id: int, engine: Engine, slowness: float) -> None:
        self.id, self.engine, self.slowness = id, engine, slowness
        self.held: dict[Episode, None] = {}  # in the order of their starts
        self.ends: list[tuple[float, int, Episode]] = []
        self.count, self.time, self.busy_s, self.tokens = 0.0, 0.0, 0.0, 0.0
        self.plan, self.alive = 0, True
        self.version, self._order = 0, 0
        self._swaps: tuple[list[float], list[int]] = ([-1.0], [0])

    def step(self) -> float:
        return self.engine.step(len(self.ends)) * self.slowness

    def advance(self, now: float) -> None:
        """Brings the count up to `now`. A pause has moved `time` ahead of it."""
        if now <= self.time:
            return
        if self.ends:
            steps = (now - self.time) / self.step()
            self.count += steps
            self.tokens += steps * len(self.ends)
            self.busy_s += now - self.time
        self.time = now

    def pause(self, now: float, seconds: float) -> None:
        self.advance(now)
        self.time = max(self.time, now) + seconds

    def start(self, episode: Episode, now: float) -> None:
        episode.began, episode.version, episode.turn = now, self.version, 0
        self.held[episode] = None
        self.answer(episode, now)

    def answer(self, episode: Episode, now: float) -> None:
        """The next turn of an episode in its slots."""
        self.advance(now)
        self._order += 1
        heappush(self.ends, (self.count + episode.turn_tokens, self._order, episode))

    def next_end(self, now: float) -> float | None:
        """When the next episode has all its tokens."""
        if not self.ends:
            return None
        self.advance(now)
        return self.time + max(0.0, self.ends[0][0] - self.count) * self.step()

    def pop_ended(self, now: float) -> Iterator[Episode]:
        self.advance(now)
        # The first one is due; rounding must not make it wait for another event.
        limit = max(self.count, self.ends[0][0]) + 1e-9
        self.count = max(self.count, self.ends[0][0])
        while self.ends and self.ends[0][0] <= limit:
            yield heappop(self.ends)[2]

    def free(self, episode: Episode) -> None:
        del self.held[episode]

    def swap(self, now: float, version: int) -> None:
        self.version = version
        self._swaps[0].append(now)
        self._swaps[1].append(version)

    def versions_between(self, began: float, ended: float) -> Iterator[tuple[int, float]]:
        """The versions that it sampled from between two times, with their shares of that time."""
        times, versions = self._swaps
        first = bisect_right(times, began) - 1
        if ended <= began or first == len(times) - 1:
            yield versions[first], 1.0
            return
        for i in range(first, len(times)):
            until = min(ended, times[i + 1]) if i + 1 < len(times) else ended
            if until > times[i]:
                yield versions[i], (until - max(began, times[i])) / (ended - began)
            if until == ended:
                return

    def die(self, now: float) -> list[Episode]:
        """Its node has failed: the episodes that were in flight."""
        self.advance(now)
        lost = list(self.held)
        self.held, self.ends, self.alive = {}, [], False
        return lost

    def live(self, now: float) -> None:
        """Its node is back; it can start episodes when it has weights."""
        self.alive, self.time, self.version = True, now, NO_WEIGHTS


class Loads:
    """Engines with free slots, the least loaded first."""

    def __init__(self, actors: list[Actor], *, by_speed: bool) -> None:
        self._by_speed = by_speed
        self._heap = [(self._load(actor), actor.id, actor) for actor in actors]
        heapify(self._heap)

    def put(self, actor: Actor) -> None:
        """Its load has changed."""
        heappush(self._heap, (self._load(actor), actor.id, actor))

    def least(self, oldest: int) -> Actor | None:
        """An engine with a free slot and with weights of version `oldest` or newer.

        One whose weights are too old leaves the heap; it is put back when it gets new ones.
        """
        while self._heap:
            load, _, actor = self._heap[0]
            usable = actor.alive and actor.version >= oldest and len(actor.held) < actor.engine.slots
            if usable and load == self._load(actor):
                return actor
            heappop(self._heap)
        return None

    def _load(self, actor: Actor) -> float:
        return len(actor.held) * (actor.slowness if self._by_speed else 1.0)
