"""The driver's side of online training on a cluster, without Ray."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bough.engines.base import EngineError
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.methods.grpo import train_grpo
from bough.online import cluster
from bough.online.cluster import ByName, ClusterSampler, News, OneAtATime, VersionedAttempt, VersionedRunner
from bough.online.samplers import Meter
from bough.rollouts.collect import Attempt, Images, LocalRunner
from bough.rollouts.ray import ClusterLostError
from bough.rollouts.ray_weights import Publisher, Subscriber, Version
from bough.training.checkpoint import checkpoints
from bough.training.plan import PausedError
from bough.types import Message, Task, Trajectory
from tests.online.letters import Letters
from tests.online.test_online import settings
from tests.rollouts.ray.test_weights import Shelf

ATTEMPT = Attempt("a#0", Task(id="a"), 7, temperature=0.5)


class Recorder:
    """A runner that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Attempt, str | None]] = []

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        self.given.append((attempt, episode))
        start = [Message(role="user", content="Begin.")]
        return Trajectory(id=attempt.id, task=attempt.task, start=start, turns=[], info={"completion_tokens": 30}), []


def test_an_attempt_is_handed_out_with_the_version_that_is_the_newest_then():
    recorder, publisher = Recorder(), Publisher(2, Shelf())
    runner = VersionedRunner(recorder, publisher, Meter())
    versions = []
    for step in range(3):
        versions.append(publisher.publish(f"step-{step}", {"a": torch.ones(step)}))
        asyncio.run(runner.play(ATTEMPT, episode=f"{step}/a#0"))
    expected = [VersionedAttempt("a#0", ATTEMPT.task, 7, 0.5, version) for version in versions]
    assert recorder.given == [(attempt, f"{step}/a#0") for step, attempt in enumerate(expected)]


def test_tokens_that_workers_sampled_are_metered():
    clock = iter(range(100))
    publisher, meter = Publisher(2, Shelf()), Meter(lambda: float(next(clock)))
    publisher.publish("step-0", {})
    asyncio.run(VersionedRunner(Recorder(), publisher, meter).play(ATTEMPT))
    lap = meter.lap()
    assert lap["sampled_tokens_per_s"] == 30 / lap["batch_seconds"] and lap["sampling_share"] > 0


def test_vllm_is_refused_before_anything_is_started(tmp_path: Path):
    none: Any = None
    with pytest.raises(InputError, match="--engine vllm does not go with --cluster"):
        ClusterSampler(settings(tmp_path, cluster="auto", engine="vllm"), none, Letters, none)


@pytest.mark.parametrize(
    ("device", "learners", "reserved", "here"), [("cpu", 1, 0, False), ("cuda", 1, 0, True), ("cuda:0", 2, 2, False)]
)
def test_the_gpu_that_this_process_trains_on_is_not_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, learners: int, reserved: int, here: bool
):
    given: dict[str, Any] = {}

    @asynccontextmanager
    async def noted(*_: Any, **settings: Any) -> AsyncIterator[None]:
        given.update(settings)
        yield

    monkeypatch.setattr(cluster, "cluster_runner", noted)
    monkeypatch.setattr(cluster, "Publisher", lambda **_: None)
    monkeypatch.setattr(cluster.PolicyAgents, "of", lambda *_: None)
    policy: Any = SimpleNamespace(device=torch.device(device))
    with closing(BackgroundLoop()) as loop:
        ClusterSampler(settings(tmp_path, cluster="auto", learners=learners), policy, Letters, loop)
    assert (given["reserved_gpus"], given["trains_here"]) == (reserved, here)


def test_a_cluster_that_is_gone_pauses_the_run_with_its_weights_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    play = LocalRunner.play
    num_played = 0

    async def lost(self: LocalRunner, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        nonlocal num_played
        num_played += 1
        if num_played > 8:  # a batch of 2 groups of 4
            raise ClusterLostError("the cluster has had no worker for 600 s")
        return await play(self, attempt, episode=episode)

    monkeypatch.setattr(LocalRunner, "play", lost)
    monkeypatch.setattr(LocalRunner, "can_share", lambda *_: False)  # as on a cluster
    with pytest.raises(
        PausedError, match="batch 1 cannot be played: the cluster has had no worker for 600 s; the weig"
    ):
        train_grpo(settings(tmp_path, max_steps=2, save_steps=9))
    assert [one.step for one in checkpoints(tmp_path / "checkpoints")] == [1]


PLAIN_LORA = {"peft_type": "LORA", "lora_alpha": 2}


class Engine:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def rest(self) -> None: ...

    def renew(self, name: str) -> None:
        self.asked.append(f"renew {name}")

    def set_adapter(self, name: str, weights: Any) -> None:
        self.asked.append(f"set {name} {weights.layers['layer'].up_OR.item():g}")

    def remove_adapter(self, name: str) -> None:
        self.asked.append(f"remove {name}")


def lora(value: float) -> dict[str, Tensor]:
    return {"layer.lora_A.actor.weight": torch.ones(1, 1), "layer.lora_B.actor.weight": torch.full((1, 1), value)}


class Setup:
    """A publisher whose news a worker hears when it is told."""

    def __init__(self, keep: int = 3, timeout_s: float = 30.0) -> None:
        shelf = Shelf()
        self.publisher, self.news = Publisher(keep, shelf), News(Subscriber(shelf), timeout_s)
        self.engine: Any = Engine()
        self.policy: Any = SimpleNamespace(model=nn.Linear(1, 1, bias=False))

    def publish(self, number: int, *, hear: bool = True) -> Version:
        weights = {"weight": torch.full((1, 1), float(number))}
        version = self.publisher.publish(f"step-{number}", weights)
        if hear:
            self.news.hear(self.publisher.offers)
        return version

    def publish_lora(self, number: int) -> Version:
        version = self.publisher.publish(f"step-{number}", lora(number))
        self.news.hear(self.publisher.offers)
        return version

    def one_at_a_time(self) -> OneAtATime:
        return OneAtATime(self.engine, self.policy, self.news)

    def by_name(self) -> ByName:
        return ByName(self.engine, PLAIN_LORA, self.news)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


async def settle() -> None:
    """Until everything that can go on has done so: a fetch takes a thread, and a few turns of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)


@on_a_loop
async def test_new_weights_wait_until_nothing_holds_the_old_ones():
    setup = Setup()
    versions, first = setup.one_at_a_time(), setup.publish(0)
    held = [await versions.acquire(first) for _ in range(2)]
    second = setup.publish(1)
    waiting = asyncio.create_task(versions.acquire(second))
    await settle()
    versions.release(held[0])
    await settle()
    assert not waiting.done() and setup.policy.model.weight.item() == 0
    versions.release(held[1])
    assert await waiting == second and setup.policy.model.weight.item() == 1
    assert setup.engine.asked == ["renew step-0", "renew step-1"]


@on_a_loop
async def test_what_wants_the_old_weights_later_does_not_keep_the_new_ones_out():
    setup = Setup()
    versions, first = setup.one_at_a_time(), setup.publish(0)
    held, second = await versions.acquire(first), setup.publish(1)
    new, old = (asyncio.create_task(versions.acquire(one)) for one in (second, first))
    await settle()
    assert not new.done() and not old.done()
    versions.release(held)
    assert await new == second
    await settle()
    assert not old.done()
    versions.release(second)
    assert await old == first
    assert setup.engine.asked == ["renew step-0", "renew step-1", "renew step-0"]


@on_a_loop
async def test_adapters_are_held_side_by_side_and_removed_when_nothing_needs_them():
    setup = Setup()
    versions, first = setup.by_name(), setup.publish_lora(0)
    assert [await versions.acquire(first) for _ in range(2)] == [first, first]
    second = setup.publish_lora(1)
    assert await versions.acquire(second) == second, "it does not wait"
    assert setup.engine.asked == ["set version-0 0", "set version-1 2"], "2 is alpha over rank"
    versions.release(first)
    versions.release(second)
    assert setup.engine.asked[2:] == [], "one episode holds the old one, the new one is for those to come"
    versions.release(first)
    assert setup.engine.asked[2:] == ["remove version-0"]
    third = setup.publish_lora(2)
    await versions.acquire(third)
    assert setup.engine.asked[3:] == ["set version-2 4", "remove version-1"]


@pytest.mark.parametrize("by_name", [True, False])
@on_a_loop
async def test_an_episode_waits_for_news_of_its_version(by_name: bool):
    setup = Setup()
    versions: Any = setup.by_name() if by_name else setup.one_at_a_time()
    publish = setup.publish_lora if by_name else setup.publish
    publish(0)
    later = setup.publisher.publish("step-1", lora(1) if by_name else {"weight": torch.ones(1, 1)})
    waiting = asyncio.create_task(versions.acquire(later))
    await settle()
    assert not waiting.done()
    setup.news.hear(setup.publisher.offers)
    assert await waiting == later


@on_a_loop
async def test_news_that_never_comes_is_the_engine_s_fault():
    setup = Setup(timeout_s=0.01)
    version = setup.publish(0, hear=False)
    with pytest.raises(EngineError, match="did not receive the weights step-0"):
        await setup.one_at_a_time().acquire(version)


@pytest.mark.parametrize("by_name", [True, False])
@on_a_loop
async def test_a_version_that_has_gone_is_replaced_by_the_newest(by_name: bool):
    setup = Setup(keep=2)
    versions: Any = setup.by_name() if by_name else setup.one_at_a_time()
    publish = setup.publish_lora if by_name else setup.publish
    all_versions = [publish(number) for number in range(3)]
    assert await versions.acquire(all_versions[0]) == all_versions[2]
    versions.release(all_versions[2])
    publish(3)
    assert await versions.acquire(all_versions[1]) != all_versions[1]


@on_a_loop
async def test_weights_that_do_not_arrive_are_not_taken_for_loaded():
    setup = Setup()
    versions, first = setup.one_at_a_time(), setup.publish(0)
    versions.release(await versions.acquire(first))
    second = setup.publisher.publish("step-1", {"other": torch.ones(1, 1)})
    setup.news.hear(setup.publisher.offers)
    with pytest.raises(EngineError, match="another model"):
        await versions.acquire(second)
    # Half of the new weights may have been copied, so the old ones are loaded again.
    assert await versions.acquire(first) == first and setup.engine.asked == ["renew step-0", "renew step-0"]


@on_a_loop
async def test_a_cancelled_wait_leaves_no_half_loaded_weights():
    setup = Setup()
    versions, first = setup.one_at_a_time(), setup.publish(0)
    fetching, go_on, fetched = threading.Event(), threading.Event(), list[str]()
    fetch = setup.news.subscriber.fetch

    def slow(version: Version) -> dict[str, Tensor]:
        fetched.append(version.name)
        fetching.set()
        assert go_on.wait(30)
        return fetch(version)

    setup.news.subscriber.fetch = slow  # type: ignore[method-assign]
    cancelled = asyncio.create_task(versions.acquire(first))
    await asyncio.to_thread(fetching.wait, 30)
    cancelled.cancel()
    next_one = asyncio.create_task(versions.acquire(first))
    await settle()
    assert fetched == ["step-0"], "the next one waits for the thread of the first"
    go_on.set()
    assert await next_one == first
    assert setup.engine.asked == ["renew step-0", "renew step-0"]
