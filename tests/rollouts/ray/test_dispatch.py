import asyncio
from collections import Counter

import pytest

from bough.rollouts.ray_pool import Dispatcher, Place, ReadyWorker
from tests.rollouts.ray.fakes import FakeWorker


def worker(seconds: float | None = None) -> ReadyWorker:
    return ReadyWorker(FakeWorker(), Place("a", "host", 1), seconds=seconds)


def dispatcher(*workers: ReadyWorker, most: int = 4) -> Dispatcher:
    made = Dispatcher(most)
    for one in workers:
        made.add(one)
    return made


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_episodes_are_spread_evenly_over_workers_of_the_same_speed():
    made = dispatcher(worker(), worker(1.0), worker(1.0))
    for _ in range(6):
        await made.take(alone=False)
    assert [one.in_flight for one in made.workers] == [2, 2, 2]


async def test_a_slow_worker_is_given_less():
    slow, quick = worker(4.0), worker(1.0)
    made = dispatcher(slow, quick, most=8)
    counts = Counter([(await made.take(alone=False)).seconds for _ in range(10)])
    assert counts == {4.0: 2, 1.0: 8}


def test_seconds_per_episode_follow_the_newest():
    one = worker()
    one.note(10.0)
    one.note(20.0)
    assert one.seconds == pytest.approx(13.0)


async def test_a_full_worker_is_given_nothing_until_an_episode_ends():
    made = dispatcher(worker(), most=1)
    first = await made.take(alone=False)
    second = asyncio.create_task(made.take(alone=False))
    await settle()
    assert not second.done()
    made.give_back(first, alone=False)
    assert await second is first


async def test_an_attempt_that_is_to_be_alone_waits_until_its_worker_is_empty():
    only = worker()
    made = dispatcher(only)
    await made.take(alone=False)
    alone = asyncio.create_task(made.take(alone=True))
    later = asyncio.create_task(made.take(alone=False))
    await settle()
    assert not alone.done() and not later.done()
    made.give_back(only, alone=False)
    assert await alone is only and only.in_flight == 1
    await settle()
    assert not later.done()
    made.give_back(only, alone=True)
    assert await later is only


async def test_half_of_the_workers_stay_for_other_attempts():
    made = dispatcher(*(worker() for _ in range(4)))
    alone = [asyncio.create_task(made.take(alone=True)) for _ in range(3)]
    await settle()
    assert [task.done() for task in alone] == [True, True, False]
    assert not (await made.take(alone=False)).alone
    alone[2].cancel()


async def test_a_reserved_worker_that_is_lost_is_replaced_by_another():
    first, second = worker(), worker()
    made = dispatcher(first, most=1)
    await made.take(alone=False)
    alone = asyncio.create_task(made.take(alone=True))
    await settle()
    assert made.remove(first) and not made.remove(first)
    made.add(second)
    assert await alone is second


async def test_whoever_stops_waiting_takes_nothing_away():
    only = worker()
    made = dispatcher(only, most=1)
    await made.take(alone=False)
    waiting = [asyncio.create_task(made.take(alone=alone)) for alone in (False, True)]
    await settle()
    for task in waiting:
        task.cancel()
    await settle()
    made.give_back(only, alone=False)
    assert (only.in_flight, only.alone) == (0, False)
    assert await made.take(alone=False) is only


async def test_whoever_stops_just_as_a_worker_is_handed_out_gives_it_back():
    only = worker()
    made = dispatcher(only, most=1)
    await made.take(alone=False)
    task = asyncio.create_task(made.take(alone=False))
    await settle()
    made.give_back(only, alone=False)  # the task has its worker, but has not run yet
    assert only.in_flight == 1
    task.cancel()
    await settle()
    assert only.in_flight == 0


async def test_a_failure_ends_all_waits():
    made = dispatcher()
    waiting = [asyncio.create_task(made.take(alone=alone)) for alone in (False, True)]
    await settle()
    made.fail(RuntimeError("gone"))
    assert [str(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == ["gone", "gone"]
    with pytest.raises(RuntimeError, match="gone"):
        await made.take(alone=False)
