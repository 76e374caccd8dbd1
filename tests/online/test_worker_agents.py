"""A worker's agents, in this process: whole episodes with the tiny model and weights that arrive in between."""

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bough.chat.template import load_template
from bough.config.groups import LimitsConfig
from bough.engines.local.engine import LocalEngine
from bough.environments.base import Environment, Observation
from bough.methods.grpo import GRPOConfig
from bough.online import cluster
from bough.online.cluster import ByName, OneAtATime, PolicyAgents, VersionedAttempt, WorkerAgents
from bough.online.samplers import TemperatureAgents
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.rollouts.collect import LocalRunner, attempts
from bough.rollouts.ray_weights import Publisher, Subscriber, Version, copy_weights, trained_weights
from bough.types import Call, Trajectory
from tests.online.letters import Corridor, Letters
from tests.online.test_cluster import settle
from tests.rollouts.ray.test_weights import Shelf


class Gated(Letters):
    """Two turns; between them the first task waits until it is let through."""

    max_turns = 2
    reached, open = threading.Event(), threading.Event()
    seen = 0

    async def step(self, reply: str) -> Observation:
        self.seen += 1
        if self.seen == 2:
            return await super().step(reply)
        if self.task.data["number"] == 0:
            self.reached.set()
            while not self.open.is_set():
                await asyncio.sleep(0.001)
        return Observation.say("Again.")


def config(**more: Any) -> GRPOConfig:
    values = {"model": "tiny", "environment": "tests.online.letters:Letters", "max_steps": 1, "max_new_tokens": 4}
    return GRPOConfig(**{**values, "cluster": "auto", **more})


class Trainer:
    """A policy whose weights are sent to a worker in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        shelf = Shelf()
        monkeypatch.setattr(cluster, "Subscriber", lambda: Subscriber(shelf))
        self.config = config(**more)
        lora = Lora(r=4) if self.config.lora.enabled else None
        self.policy, self.publisher = Policy.load("tiny", lora=lora).eval(), Publisher(3, shelf)
        self.factory = pickle.loads(pickle.dumps(PolicyAgents.of(self.config, self.policy)))

    def publish(self, seed: int) -> Version:
        """New weights, by a seed."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in trained_weights(self.policy).values():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
        return self.publisher.publish(f"step-{seed}", trained_weights(self.policy))

    def logprobs(self, version: Version, calls: list[Call]) -> list[list[float]]:
        """What the weights of a version say, computed by the trainer's own code."""
        subscriber = Subscriber(self.publisher._store)
        subscriber.hear(self.publisher.offers)
        copy_weights(subscriber.fetch(version), self.policy)
        with torch.no_grad():
            return [values.tolist() for values in self.policy.logprobs(calls)]


def attempt(version: Version, number: int = 0, environment_class: type[Environment] = Letters) -> VersionedAttempt:
    task = list(environment_class.tasks({}))[number]
    (found,) = attempts([task], 1, 7)
    return VersionedAttempt(found.id, found.task, found.seed, temperature=1.0, version=version)


async def played(environment_class: type[Environment], agents: WorkerAgents, attempt: VersionedAttempt) -> Trajectory:
    async with agents.playing(attempt) as agent:
        record, _ = await LocalRunner.of(environment_class, agent, LimitsConfig()).play(attempt)
        return record


def calls_of(record: Trajectory) -> list[Call]:
    return [turn.call for turn in record.turns if turn.call]


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    Gated.reached.clear()
    Gated.open.clear()
    yield
    Gated.open.set()


@pytest.mark.bit_exact
@pytest.mark.parametrize("use_lora", [True, False])
def test_a_worker_s_record_is_the_trainer_s_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, use_lora: bool):
    trainer = Trainer(monkeypatch, use_lora=use_lora)

    async def play() -> None:
        agents = await trainer.factory()
        assert isinstance(agents._versions, OneAtATime)
        trainer.publish(0)
        for number in (1, 2):
            version = trainer.publish(number)
            await agents.renew(version.name, trainer.publisher.offers)
            record = await played(Corridor, agents, attempt(version, number, Corridor))
            template = load_template("tiny")
            engine = LocalEngine.of(trainer.policy, tokenizer=template.tokenizer, name=version.name)
            here = LocalRunner(Corridor, TemperatureAgents(trainer.config, engine, template), trainer.config.limits)
            expected, _ = await here.play(attempt(version, number, Corridor))
            assert record == expected and {call.policy for call in calls_of(record)} == {f"step-{number}"}
            await engine.close()
        await agents.close()

    asyncio.run(play())


async def in_between(trainer: Trainer, agents: WorkerAgents) -> tuple[list[Version], list[Trajectory]]:
    """Two episodes: while the first is between its turns, new weights arrive and the second is played with them."""
    first = trainer.publish(0)
    await agents.renew(first.name, trainer.publisher.offers)
    old = asyncio.create_task(played(Gated, agents, attempt(first, 0)))
    while not Gated.reached.is_set():
        await asyncio.sleep(0.001)
    second = trainer.publish(1)
    await agents.renew(second.name, trainer.publisher.offers)
    new = asyncio.create_task(played(Gated, agents, attempt(second, 1)))
    if isinstance(agents._versions, ByName) or agents._swaps:
        await new  # before the old one ends
    else:
        await settle()
        assert not new.done()
    Gated.open.set()
    records = [await one for one in (old, new)]
    await agents.close()
    return [first, second], records


@pytest.mark.parametrize(
    ("use_lora", "swaps", "expected"),
    [
        (True, False, ["step-0", "step-0", "step-1", "step-1"]),
        (True, True, ["step-0", "step-1", "step-1", "step-1"]),
        (False, False, ["step-0", "step-0", "step-1", "step-1"]),
        (False, True, ["step-0", "step-1", "step-1", "step-1"]),
    ],
)
def test_weights_change_between_episodes_or_between_turns(
    monkeypatch: pytest.MonkeyPatch, use_lora: bool, swaps: bool, expected: list[str]
):
    trainer = Trainer(monkeypatch, use_lora=use_lora, max_staleness=1, swap_mid_episode=swaps)

    async def play() -> tuple[list[Version], list[Trajectory]]:
        agents = await trainer.factory()
        assert isinstance(agents._versions, ByName if use_lora else OneAtATime)
        return await in_between(trainer, agents)

    versions, records = asyncio.run(play())
    calls = [call for record in records for call in calls_of(record)]
    assert [call.policy for call in calls] == expected
    for version in versions:
        mine = [call for call in calls if call.policy == version.name]
        for call, logprobs in zip(mine, trainer.logprobs(version, mine), strict=True):
            assert call.logprobs == pytest.approx(logprobs, abs=1e-4), version.name


def test_an_episode_that_failed_gives_its_version_back(monkeypatch: pytest.MonkeyPatch):
    trainer = Trainer(monkeypatch)

    class Broken(Letters):
        async def step(self, reply: str) -> Observation:
            raise RuntimeError("the browser is gone")

    async def play() -> None:
        agents = await trainer.factory()
        for number in (0, 1):
            version = trainer.publish(number)
            await agents.renew(version.name, trainer.publisher.offers)
            with pytest.raises(Exception, match="the browser is gone"):
                await played(Broken, agents, attempt(version))
        assert agents._versions._num_holders == 0
        await agents.close()

    asyncio.run(play())


def test_an_episode_begins_when_its_weights_are_there(monkeypatch: pytest.MonkeyPatch):
    """The time limit of an episode counts from its beginning: the wait for weights is not the agent's fault."""
    trainer = Trainer(monkeypatch)

    class Noted(Letters):
        begun = False

        async def start(self) -> Observation:
            Noted.begun = True
            return await super().start()

    async def play() -> Trajectory:
        agents = await trainer.factory()
        version = trainer.publish(0)
        playing = asyncio.create_task(played(Noted, agents, attempt(version)))
        await settle()
        assert not Noted.begun
        await agents.renew(version.name, trainer.publisher.offers)
        record = await playing
        await agents.close()
        return record

    assert calls_of(asyncio.run(play())) and Noted.begun
