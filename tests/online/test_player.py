import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.engines.base import Answer, Chat, EngineError
from bough.environments.base import Environment, Observation
from bough.environments.isolated import Isolated
from bough.errors import InputError, RowError
from bough.event_loop import BackgroundLoop
from bough.online.player import EpisodeStream, Job, Result
from bough.rollouts.collect import Attempt, LocalRunner
from bough.types import Message, Task, Trajectory


class OneTurn(Environment):
    """Ends with the first reply."""

    name = "one turn"

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        yield Task(id="t")

    async def start(self) -> Observation:
        return Observation.say("Go.")

    async def step(self, reply: str) -> Observation:
        return Observation.end(success=True)


@dataclass
class Agent:
    """Takes a while for each answer, fails as often as it is told, and knows who was in flight with whom."""

    seconds: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    error: Exception = field(default_factory=lambda: EngineError("it broke"))
    flying: set[str] = field(default_factory=set)
    seen: list[set[str]] = field(default_factory=list)
    slowest: str | None = None  # takes until seven others have answered
    ended: int = 0
    name = "agent"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        return _Chat(self, episode)

    async def close(self) -> None:
        return


@dataclass
class _Chat:
    agent: Agent
    episode: str

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        agent = self.agent
        assert self.episode not in agent.flying, "no two episodes have one name"
        agent.flying.add(self.episode)
        agent.seen.append(set(agent.flying))
        try:
            await asyncio.sleep(agent.seconds.get(self.episode, 0.0))
            while self.episode == agent.slowest and agent.ended < 7:
                await asyncio.sleep(0.001)
        finally:
            agent.flying.discard(self.episode)
            agent.ended += 1
        if agent.failures[self.episode] > 0:
            agent.failures[self.episode] -= 1
            raise agent.error
        return Answer(Message(role="assistant", content="a"), None, "stop")

    def close(self) -> None:
        return


Kept = list[tuple[int, str, range]]


@contextmanager
def stream(agent: Agent, *, concurrency: int = 4, retries: int = 0, keep: Any = None) -> Iterator[EpisodeStream]:
    loop = BackgroundLoop()
    runner = LocalRunner.of(OneTurn, agent, LimitsConfig())
    found = EpisodeStream(runner, loop, concurrency=concurrency, retries=retries, keep=keep or (lambda *_: None))
    try:
        yield found
    finally:
        found.close()
        loop.close()


def jobs(count: int, *, tasks: int = 1) -> list[Job]:
    """Attempts at tasks that are all the same one."""
    return [Job(n, Attempt(f"t#{i}", Task(id="t"), i)) for n in range(tasks) for i in range(count)]


def ended(stream: EpisodeStream, count: int) -> list[Result]:
    found: list[Result] = []
    while len(found) < count:
        found += stream.results()
    return found


def names(results: list[Result]) -> list[str]:
    return [f"{result.job.number}/{result.job.attempt.id}" for result in results]


def test_as_one_episode_ends_the_next_begins_whatever_task_it_is_of():
    """One of eight ends only when the other seven have ended: whoever waited for it would wait forever."""
    agent = Agent(slowest="0/t#0")
    with stream(agent, concurrency=2) as playing:
        playing.submit(jobs(4, tasks=2))
        found = names(ended(playing, 8))
    assert len(set(found)) == 8
    assert max(map(len, agent.seen)) <= 2


def test_never_more_are_in_flight_than_asked_for_and_each_is_heard_of_once():
    rng = random.Random(1)
    agent = Agent({f"{n}/t#{i}": rng.random() * 0.02 for n in range(6) for i in range(5)})
    counts: list[int] = []
    with stream(agent, concurrency=7) as playing:
        playing._watch = counts.append
        for start in range(0, 30, 10):
            playing.submit(islice(jobs(5, tasks=6), start, start + 10))
        found = names(ended(playing, 30))
    assert len(set(found)) == 30 and max(map(len, agent.seen)) <= max(counts) == 7


def test_an_episode_is_kept_before_it_is_heard_of_with_the_versions_that_sampled_it():
    kept: Kept = []
    agent = Agent({"0/t#1": 1.0})
    with stream(agent, keep=lambda number, episode, versions: kept.append((number, episode.id, versions))) as playing:
        playing.version = 3
        playing.submit(jobs(2))
        [first] = ended(playing, 1)
        assert kept == [(0, first.job.attempt.id, range(3, 4))]
        playing.version = 5
        ended(playing, 1)
    assert kept[1] == (0, "t#1", range(3, 6))


def test_an_episode_that_fails_is_tried_again_and_at_last_alone():
    agent = Agent({"0/t#1": 1.0, "0/t#2": 1.0}, Counter({"0/t#0": 2}))
    with stream(agent, retries=1) as playing:
        playing.submit(jobs(3))
        found = ended(playing, 3)
    assert all(result.episode for result in found) and names(found)[-1] == "0/t#0"
    assert agent.seen[-1] == {"0/t#0"}
    assert found[-1].episode is not None and found[-1].episode.info["retries"] == 2


def test_an_episode_that_always_fails_is_lost_with_its_error():
    agent = Agent(failures=Counter({"0/t#0": 99}))
    with stream(agent, retries=1) as playing:
        playing.submit(jobs(2))
        finished, lost = ended(playing, 2)
    assert finished.episode is not None and lost.episode is None and lost.error == "it broke"
    assert agent.failures["0/t#0"] == 99 - 4


def test_an_episode_that_cannot_be_written_is_lost():
    def keep(number: int, episode: Trajectory, versions: range) -> None:
        raise RowError("not_json", "it has a lone surrogate")

    with stream(Agent(), keep=keep) as playing:
        playing.submit(jobs(1))
        [lost] = ended(playing, 1)
    assert lost.episode is None and lost.error == "it has a lone surrogate"


@pytest.mark.parametrize("broken", ["agent", "disk"])
def test_any_other_error_is_raised_where_results_are_waited_for(broken: str):
    def keep(number: int, episode: Trajectory, versions: range) -> None:
        raise InputError("the disk is full")

    agent = Agent(error=InputError("there is no expert"), failures=Counter({"0/t#0": 1}))
    said = "there is no expert" if broken == "agent" else "the disk is full"
    with stream(agent, keep=keep if broken == "disk" else None) as playing:
        playing.submit(jobs(2)[1:] if broken == "disk" else jobs(1))
        with pytest.raises(InputError, match=said):
            ended(playing, 1)


class Translating(OneTurn):
    """Waits for a client that turns every exception into its own, also that of a cancelled call."""

    shares_loop = True
    begun = 0

    async def step(self, reply: str) -> Observation:
        Translating.begun += 1
        try:
            await asyncio.sleep(0 if Translating.begun > 1 else 60)
        except asyncio.CancelledError:
            raise ConnectionError("the client was closed") from None
        return await super().step(reply)


def test_a_cancelled_episode_is_not_tried_again_whatever_its_environment_raises():
    loop = BackgroundLoop()
    runner = LocalRunner.of(Translating, Agent(), LimitsConfig())
    playing = EpisodeStream(runner, loop, concurrency=1, retries=2, keep=lambda *_: None)
    playing.submit(jobs(1))
    while not Translating.begun:
        time.sleep(0.001)
    assert playing.clear() == 1
    playing.close()
    loop.close()
    assert Translating.begun == 1
