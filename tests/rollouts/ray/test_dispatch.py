import asyncio

import pytest

from bough.rollouts.ray_pool import Place, ReadyWorker, WorkerPool
from tests.rollouts.ray.fakes import FakeWorker, Launcher


def pool(workers: int, most: int) -> WorkerPool:
    made = Launcher(lambda _: FakeWorker()).pool(workers)
    made.most = most
    made.workers = [ReadyWorker(FakeWorker(), Place("a", "host", 1)) for _ in range(workers)]  # type: ignore[arg-type]
    return made


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_work_is_spread_evenly_over_the_workers():
    made = pool(3, most=4)
    for _ in range(6):
        await made.take()
    assert [one.in_flight for one in made.workers] == [2, 2, 2]


async def test_a_full_worker_is_given_nothing_until_an_episode_ends():
    made = pool(1, most=1)
    first = await made.take()
    second, third = (asyncio.create_task(made.take()) for _ in range(2))
    await settle()
    assert not second.done()
    second.cancel()  # whoever stops waiting takes nothing away
    await settle()
    made.give_back(first)
    assert await third is first and first.in_flight == 1


async def test_a_failure_ends_all_waits():
    made = pool(0, most=1)
    waiting = [asyncio.create_task(made.take()) for _ in range(2)]
    await settle()
    made.fail(RuntimeError("gone"))
    assert [str(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == ["gone", "gone"]
    with pytest.raises(RuntimeError, match="gone"):
        await made.take()
