"""The runner and its pool, with workers that play nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bough.config.groups import AgentConfig
from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError
from bough.rollouts import ray_pool as pool_module
from bough.rollouts.collect import collect
from bough.rollouts.ray import ClusterLostError
from bough.rollouts.ray_workers import ClusterRunner, computes
from tests.rollouts.ray.fakes import NO_ROOM, FakeWorker, Launcher, record
from tests.rollouts.ray.worlds import attempt


@asynccontextmanager
async def running(launcher: Launcher, workers: int = 2, timeout_s: float = 60.0) -> AsyncIterator[ClusterRunner]:
    pool = launcher.pool(workers, timeout_s)
    pool.start()
    try:
        yield ClusterRunner(pool)
    finally:
        await pool.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_what_a_lost_worker_was_playing_is_played_elsewhere_and_the_worker_is_replaced():
    launcher = Launcher(lambda number: FakeWorker(answers=number > 0))
    async with running(launcher, workers=1) as runner:
        plays = [asyncio.create_task(runner.play(attempt(number))) for number in range(3)]
        await until(lambda: launcher.made and len(launcher.made[0].playing) == 3)
        launcher.made[0].die()
        found = await asyncio.gather(*plays)
        assert [one for one, _ in found] == [record(attempt(number)) for number in range(3)]
        assert (runner.worker_losses, len(launcher.made), len(launcher.said)) == (1, 2, 1)
    assert launcher.made[1].closed and launcher.made[1].killed


async def test_an_attempt_that_kills_every_worker_is_lost_and_the_others_are_not():
    deadly = attempt(7).id
    launcher = Launcher(lambda _: FakeWorker(deadly=frozenset({deadly})))
    records = []
    async with running(launcher) as runner:
        wanted = [attempt(number) for number in range(12)]
        tally = await collect(runner, wanted, lambda one, _: records.append(one.id), concurrency=6, retries=1)
        assert runner.worker_losses == 5  # none for the retries
    assert set(records) == {one.id for one in wanted} - {deadly}
    assert list(tally.lost) == [deadly]
    assert "5 workers in a row died while they played it" in tally.lost[deadly]


async def test_a_node_that_cannot_play_is_left_out_and_the_reason_is_said_once():
    launcher = Launcher(lambda number: FakeWorker("ab"[number % 2], {"b": "no browser"}))
    async with running(launcher, workers=4) as runner:
        await until(lambda: len(runner.places) == 4)
        assert (await runner.play(attempt(1)))[0] == record(attempt(1))
        assert {place.node for place in runner.places} == {"a"}
        assert [worker.node for worker in launcher.made].count("b") == 2
    assert launcher.said == ["host-b is left out: no browser"]


async def test_a_cluster_on_which_no_node_can_play_is_an_error_with_the_reason():
    launcher = Launcher(lambda _: FakeWorker(refusals={"a": "no browser"}), nodes="a")
    async with running(launcher, timeout_s=0.2) as runner:
        with pytest.raises(InputError, match="no node of the cluster can be used: no browser"):
            await runner.play(attempt())


async def test_a_cluster_without_workers_is_an_error_after_the_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "FIRST_NOTE_S", 0.0)
    launcher = Launcher(lambda _: FakeWorker(NO_ROOM))
    async with running(launcher, timeout_s=0.1) as runner:
        with pytest.raises(ClusterLostError, match=r"--cluster-timeout.*the same command resumes") as raised:
            await runner.play(attempt())
        assert raised.value.exit_code == 1
        with pytest.raises(ClusterLostError):
            await runner.play(attempt())
    assert len(launcher.said) == 1 and launcher.said[0].startswith("the cluster has no worker; waiting for")


async def test_workers_that_die_while_they_start_are_an_error_not_an_endless_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "LONGEST_PAUSE_S", 0.0)
    async with running(Launcher(lambda _: FakeWorker(dies_in_start=True))) as runner:
        with pytest.raises(ClusterLostError, match=r"7 in a row: no memory\. .* lower --workers"):
            await runner.play(attempt())


async def test_new_weights_reach_all_workers_also_those_that_start_later():
    launcher = Launcher(lambda _: FakeWorker())
    async with running(launcher) as runner:
        await until(lambda: len(runner.places) == 2)
        await runner.renew("step-1", "w1")
        launcher.made[0].die()
        await runner.renew("step-2", "w2")
        await until(lambda: len(runner.places) == 2)
        assert runner.worker_losses == 1
    assert [worker.weights for worker in launcher.made] == [
        [("step-1", "w1")],
        [("step-1", "w1"), ("step-2", "w2")],
        [("step-2", "w2")],
    ]


class Raises(FakeWorker):
    """An error of its code while it gets weights."""

    async def renew(self, name, weights):
        raise RuntimeError("these are not weights")


async def test_an_error_of_the_code_that_starts_a_worker_ends_the_wait_for_workers():
    async with running(Launcher(lambda _: Raises()), workers=1) as runner:
        renewing = asyncio.create_task(runner.renew("step-1", "w1"))
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="these are not weights"):
                await runner.play(attempt())
        await asyncio.gather(renewing, return_exceptions=True)


class Fails(FakeWorker):
    def finish(self, given):
        from bough.rollouts.ray_workers import Outcome

        self.playing[given.id].set_result(Outcome.of_error(EnvironmentFailedError("the world broke")))


async def test_a_failing_environment_is_not_a_lost_worker():
    async with running(Launcher(lambda _: Fails())) as runner:
        with pytest.raises(EnvironmentFailedError, match="the world broke"):
            await runner.play(attempt())
        assert runner.worker_losses == 0


async def test_a_cancelled_attempt_frees_its_worker():
    launcher = Launcher(lambda _: FakeWorker(answers=False))
    async with running(launcher, workers=1) as runner:
        play = asyncio.create_task(runner.play(attempt()))
        await until(lambda: launcher.made and launcher.made[0].playing)
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)
        assert [worker.in_flight for worker in runner._pool.workers] == [0]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (AgentConfig(model="tiny"), True),
        (AgentConfig(model="expert"), False),
        (AgentConfig(model="random"), False),
        (AgentConfig(model="m", engine="vllm"), True),
        (AgentConfig(model="m", engine="vllm", base_url="http://x"), False),
        (AgentConfig(model="m", engine="openai", base_url="http://x"), False),
    ],
)
def test_only_models_in_a_worker_need_a_gpu(agent: AgentConfig, expected: bool):
    assert computes(agent) is expected
