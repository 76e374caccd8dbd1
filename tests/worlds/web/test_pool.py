import asyncio
import os
import signal

from bough.environments.base import EnvironmentFailedError
from bough.worlds.web.environment import Web
from bough.worlds.web.page import Page, Pool
from tests.worlds.web.conftest import web


def test_pages_are_used_again_and_broken_ones_are_not(run):
    async def main():
        pool = Pool.here()
        first = await pool.take()
        second = await pool.take()
        assert first is not second
        await pool.give_back(first, sound=True)
        assert await pool.take() is first
        await pool.give_back(second, sound=False)
        third = await pool.take()
        assert third is not second
        for page in (first, third):
            await pool.give_back(page, sound=True)

    run(main())


def test_a_page_that_is_loaded_already_is_preferred(run):
    async def main():
        pool = Pool.here()
        pages = [await pool.take() for _ in range(3)]
        await pages[0].start("click-test", 0, "train")
        for page in pages:
            await pool.give_back(page, sound=True)
        chosen = await pool.take("click-test")
        assert chosen is pages[0]
        await pool.give_back(chosen, sound=True)

    run(main())


def test_a_browser_that_died_is_replaced_once_for_all_who_ask(run):
    async def main():
        pool = Pool.here()
        page = await pool.take()
        number = pool.num_started
        os.killpg(page.browser.pid, signal.SIGKILL)
        while page.browser.alive:
            await asyncio.sleep(0.01)
        await pool.give_back(page, sound=True)
        pages = await asyncio.gather(*(pool.take() for _ in range(4)))
        assert pool.num_started == number + 1
        assert page not in pages and all(other.browser is pages[0].browser for other in pages)
        for other in pages:
            await pool.give_back(other, sound=True)

    run(main())


def test_each_loop_has_its_own_browser_and_a_closed_loops_is_ended(run):
    async def mine():
        return await Pool.here().take()

    page = asyncio.run(mine())
    assert page.browser.pid

    async def other():
        mine = await Pool.here().take()
        assert mine.browser is not page.browser
        await Pool.here().give_back(mine, sound=True)
        await Web.shutdown()

    asyncio.run(other())
    assert not page.browser.alive


def test_only_a_few_episodes_start_at_the_same_time(run, monkeypatch):
    under_way, most, start = 0, 0, Page.start

    async def counted(page, name, seed, mode):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            if seed == 0:
                raise EnvironmentFailedError("it does not load")  # its turn must not be lost
            return await start(page, name, seed, mode)
        finally:
            under_way -= 1

    async def main():
        monkeypatch.setattr(Pool.here(), "starts", asyncio.Semaphore(2))
        monkeypatch.setattr(Page, "start", counted)
        episodes = [web("click-test", seed) for seed in range(6)]
        started = await asyncio.gather(*(one.start() for one in episodes), return_exceptions=True)
        for one in episodes:
            await one.close()
        return started

    failed, *started = run(main())
    assert isinstance(failed, EnvironmentFailedError)
    assert all("button" in one.messages[-1].content for one in started)
    assert most == 2
