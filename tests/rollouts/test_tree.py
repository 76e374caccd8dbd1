"""Attempts at a task, played together: each has the record that it has alone."""

import asyncio
import random
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic_core import to_json

from bough.chat.template import load_template
from bough.config.groups import LimitsConfig, SamplingConfig
from bough.engines.base import Generated
from bough.engines.chat import TemplateEngine
from bough.engines.local.engine import LocalEngine
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.models.resolve import load_tokenizer
from bough.policy.policy import Policy
from bough.rollouts import tree
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.rollouts.episode import ModelAgent, play
from bough.rollouts.tree import Player, RolloutTree
from bough.types import Task, Trajectory
from bough.worlds.household.environment import Household
from tests.engines.local.playing import small_engine


class Echo(Environment):
    """Counts what is said, and repeats it."""

    name = "echo"
    shares_steps: ClassVar[bool] = True
    steps: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.said = 0

    def start(self) -> str:
        return "Say something."

    def step(self, reply: str) -> Observation:
        type(self).steps += 1
        self.said += len(reply)
        if self.said > 60:
            return Observation.end("Enough.", success=self.said % 2 == 0)
        return Observation.say(f"{self.said} characters. You said: {reply[:5]}")

    def close(self) -> None:
        type(self).closed += 1


class Apart(Echo):
    """As `Echo`, one for each attempt."""

    name = "apart"
    shares_steps = False


class Moody(Apart):
    """Two of three see the same; the fourth to be made fails in its second step."""

    name = "moody"
    made: ClassVar[Any] = count()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.number = next(type(self).made)

    def step(self, reply: str) -> Observation:
        seen = super().step(reply)
        if self.number == 3 and self.said > len(reply):
            raise EnvironmentFailedError("a bad day")
        return seen if seen.done else Observation.say(f"{seen.text} {self.number % 3 == 0}")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load("tiny", device="cpu").eval()


def engine_of(policy: Policy, temperature: float = 0.02) -> tuple[LocalEngine, ModelAgent]:
    tokenizer = load_tokenizer("tiny")
    engine = small_engine(policy, tokenizer=tokenizer)
    sampling = SamplingConfig(max_new_tokens=6, temperature=temperature)
    return engine, ModelAgent(TemplateEngine(engine, load_template("tiny"), sampling))


LIMITS = LimitsConfig(max_turns=5, max_errors=0, max_repeats=0)


def together(policy: Policy, environment: type[Environment], tasks: list[Task], number: int, **more: Any) -> Any:
    """The records of attempts that are played as `collect` plays them, by id, and the engine."""
    engine, agent = engine_of(policy)
    found: dict[str, Trajectory] = {}

    async def run() -> Any:
        wanted = list(attempts(tasks, number, 0))
        runner = LocalRunner.of(environment, agent, LIMITS)
        tally = await collect(runner, wanted, lambda one, _: found.update({one.id: one}), **more)
        await engine.close()
        return tally

    return found, asyncio.run(run()), engine


def alone(policy: Policy, environment: type[Environment], tasks: list[Task], number: int) -> dict[str, Trajectory]:
    found = {}

    async def run() -> None:
        for one in attempts(tasks, number, 0):
            engine, agent = engine_of(policy)
            found[one.id], _ = await play(environment, one.task, agent, id=one.id, seed=one.seed, limits=LIMITS)
            await engine.close()

    asyncio.run(run())
    return found


def same(ours: dict[str, Trajectory], own: dict[str, Trajectory]) -> bool:
    return {id: to_json(one) for id, one in ours.items()} == {id: to_json(one) for id, one in own.items()}


@pytest.mark.bit_exact
@pytest.mark.parametrize("environment", [Echo, Apart])
def test_records_are_those_of_attempts_alone(policy, environment):
    tasks = [Task(id=f"t{n}", environment=environment.name, data={"n": n}) for n in range(2)]
    environment.steps = environment.closed = 0
    found, tally, engine = together(policy, environment, tasks, 6, concurrency=7)
    steps, made = environment.steps, environment.closed
    assert same(found, alone(policy, environment, tasks, 6))
    assert tally.episodes == 12 and tally.turns == sum(len(one.turns) for one in found.values())
    assert engine.scheduler.num_drawn == tally.completion_tokens > engine.scheduler.num_states
    replies = {(one.task.id, *(turn.reply.content for turn in one.turns)) for one in found.values()}
    if environment.shares_steps:
        # A turn that attempts have in common is one step, and what ends apart is one environment.
        assert steps < tally.turns and made == len(replies)
    else:
        assert steps == tally.turns and made == 12


@pytest.mark.bit_exact
def test_a_household_is_copied_where_attempts_part(policy):
    options = Household.Options(admissible=True, thoughts=False)
    tasks = [task for task, _ in zip(Household.tasks(options, seed=3), range(2), strict=False)]
    found, _, engine = together(policy, Household, tasks, 5, concurrency=10)
    assert same(found, alone(policy, Household, tasks, 5))
    assert engine.scheduler.num_states < engine.scheduler.num_drawn
    assert all(resident.request is None for resident in engine.scheduler.residents.values())
    assert not engine.scheduler.residents


def test_who_sees_something_else_goes_on_apart_and_who_fails_is_tried_again(policy):
    Moody.made = count()
    tasks = [Task(id="t", environment="moody")]
    found, tally, _ = together(policy, Moody, tasks, 6, concurrency=6)
    assert tally.episodes == 6 and tally.faults == {"environment": 1} and not tally.lost
    assert found["t#3"].info["retries"] == 1
    moods = {id: {turn.observation[0].content.split()[-1] for turn in one.turns[:-1]} for id, one in found.items()}
    assert moods["t#0"] == {"True"} and moods["t#1"] == {"False"} == moods["t#2"]


def test_what_is_cancelled_leaves_nothing_behind(policy):
    engine, agent = engine_of(policy)
    Echo.closed = 0

    async def run() -> None:
        runner = LocalRunner.of(Echo, agent, LIMITS)
        wanted = list(attempts([Task(id="t", environment="echo")], 6, 0))
        playing = asyncio.create_task(collect(runner, wanted, lambda *_: None, concurrency=6))
        while engine.scheduler.num_drawn < 12:
            await asyncio.sleep(0.001)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await engine.close()

    asyncio.run(run())
    assert Echo.closed >= 1 and not engine.scheduler.residents and not engine.scheduler.waiting


def test_the_time_of_an_episode_is_limited(policy):
    class Slow(Apart):
        name = "slow"

        async def step(self, reply: str) -> Observation:
            await asyncio.sleep(10)
            return super().step(reply)

    engine, agent = engine_of(policy)
    found = []

    async def run() -> None:
        limits = LIMITS.model_copy(update={"episode_timeout_s": 0.3})
        wanted = list(attempts([Task(id="t", environment="slow")], 3, 0))
        await collect(LocalRunner.of(Slow, agent, limits), wanted, lambda one, _: found.append(one), concurrency=3)
        await engine.close()

    asyncio.run(run())
    assert [one.stop for one in found] == ["episode_timeout"] * 3


class Odd(Apart):
    """What it tells programs cannot be compared, and the third to be made hangs."""

    name = "odd"
    made: ClassVar[Any] = count()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.number = next(type(self).made)

    async def step(self, reply: str) -> Observation:
        await asyncio.sleep(60 if self.number == 2 else 0)
        return replace(super().step(reply), info={"pixels": np.zeros(3), "number": self.number})


def test_who_hangs_holds_up_nobody_and_what_is_for_programs_parts_nobody(policy, monkeypatch):
    monkeypatch.setattr(tree, "LATE_S", 0.05)
    Odd.made = count()
    engine, agent = engine_of(policy, temperature=0.0)
    found: dict[str, Trajectory] = {}

    async def run() -> None:
        limits = LIMITS.model_copy(update={"episode_timeout_s": 3})
        wanted = list(attempts([Task(id="t", environment="odd")], 4, 0))
        runner = LocalRunner.of(Odd, agent, limits)
        await collect(runner, wanted, lambda one, _: found.update({one.id: one}), concurrency=4)
        await engine.close()

    asyncio.run(run())
    assert {id: one.stop == "episode_timeout" for id, one in found.items()} == {
        "t#0": False, "t#1": False, "t#2": True, "t#3": False
    }  # fmt: skip
    turns = sum(len(one.turns) for one in found.values())
    assert engine.scheduler.num_drawn >= 3 * engine.scheduler.num_states - 6 and turns > 3


@pytest.mark.parametrize("environment", [Echo, Apart])
def test_whenever_it_is_cancelled_everything_is_closed(environment):
    """An engine that answers after a few turns of the event loop, each time for some of those who asked."""
    template, rng = load_template("tiny"), random.Random(0)

    class Some:
        policy = "some"

        def __init__(self) -> None:
            self.released: set[str] = set()

        async def generate_each(self, episodes: list[str], prompt_ids: list[int], **_: Any) -> Any:
            left = list(range(len(episodes)))
            while left:
                await asyncio.sleep(0)
                size = rng.randrange(1, len(left) + 1)
                some, left = left[:size], left[size:]
                yield some, Generated([rng.randrange(40, 60)], [-1.0], "stop")

        async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
            ((_, drawn),) = [one async for one in self.generate_each([episode], prompt_ids, **asked)]
            return drawn

        def release(self, episode: str) -> None:
            self.released.add(episode)

    class Counted(environment):
        name, shares_loop, alive = "counted", True, 0

        def __init__(self, task: Task) -> None:
            super().__init__(task)
            type(self).alive += 1

        def copy(self) -> Any:
            type(self).alive += 1
            return super().copy()

        def close(self) -> None:
            type(self).alive -= 1

    for ticks in range(60):
        engine = Some()
        agent = ModelAgent(TemplateEngine(engine, template, SamplingConfig()))  # type: ignore[arg-type]
        players = [Player(f"t#{n}", n, f"t#{n}") for n in range(5)]

        async def run(agent: Any = agent, players: Any = players, ticks: int = ticks) -> None:
            task = Task(id="t", environment="counted")
            grown = RolloutTree(Counted, task, agent, players, limits=LIMITS, ended=lambda *_: None)
            playing = asyncio.create_task(grown.play())
            for _ in range(ticks):
                await asyncio.sleep(0)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

        asyncio.run(run())
        assert Counted.alive == 0 and (ticks == 0 or len(engine.released) == 5), ticks
