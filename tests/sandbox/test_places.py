"""Sessions share the places that a sandbox has: one waits, is parked and run again, or ends for another."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from bough.sandbox.base import Result
from bough.sandbox.inside.processes import descendants
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import LIMITS, Box


def test_a_hundred_and_fifty_sessions_share_a_few_places(box: Box):
    places, episodes = 4, 150
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(descendants(os.getpid())) - before)
            await asyncio.sleep(0.02)

    async def episode(sandbox: Sandbox, number: int) -> tuple[str | None, str | None]:
        async with sandbox.session() as session:
            first = await session.run(f"x = {number}\nopen('/tmp/file', 'w').write(str(x))")
            await session.run("x += 1")
            await asyncio.sleep(0)
            return first.value, (await session.run("x, open('/tmp/file').read()")).value

    async def play() -> list[tuple[str | None, str | None]]:
        watching = asyncio.create_task(watch())
        async with Sandbox(LIMITS, workers=2, sessions=places, isolation=box.sandbox.isolation) as sandbox:
            try:
                return await asyncio.gather(*(episode(sandbox, number) for number in range(episodes)))
            finally:
                watching.cancel()

    before = len(descendants(os.getpid()))
    answers = box.do(play())
    assert [value for _, value in answers] == [f"({number + 1}, '{number}')" for number in range(episodes)]
    # The launcher, the keeper and the program: three for each place.
    assert 0 < most <= 3 * places


def test_a_session_without_a_place_waits_for_one_that_cannot_be_parked(box: Box):
    async def answer(text: str) -> str:
        return text

    async def play() -> tuple[bool, str | None, str | None]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first = sandbox.session()
            await first.run("x = ask('told')", answer=answer)
            second = asyncio.create_task(sandbox.session().run("2"))
            await asyncio.sleep(0.5)
            waited, value = not second.done(), (await first.run("x")).value
            await first.close()
            return waited, value, (await second).value

    assert box.do(play()) == (True, "'told'", "2")


def test_a_session_that_cannot_be_run_again_is_ended_for_another_and_told(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.sandbox.pool.REPLAY_S", 0.1)
    monkeypatch.setattr("bough.sandbox.pool.IDLE_S", 0.1)

    async def play() -> list[Result]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first, second = sandbox.session(), sandbox.session()
            await first.run("import time\nx = 1\ntime.sleep(0.2)")
            other = await second.run("2")
            monkeypatch.setattr("bough.sandbox.pool.REPLAY_S", 60)  # the second one's cell is quick on any machine
            results = [other, await first.run("x"), await first.run("'x' in globals()")]
            await first.close()
            return [*results, await second.run("_")]

    other, told, after, resumed = box.do(play())
    assert other.value == "2" and resumed.value == "2"
    assert told.killed == "idle" and not told.alive and told.value is None
    assert after.value == "False"


def test_a_session_whose_cell_was_killed_gives_its_place_away(box: Box):
    async def play() -> str | None:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first = sandbox.session()
            assert "exited" in str((await first.run("import os\nos._exit(1)")).error)
            return (await sandbox.session().run("2")).value

    assert box.do(play()) == "2"


def test_a_parked_session_that_is_closed_is_forgotten(box: Box):
    async def play() -> list[str | None]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first, second = sandbox.session(), sandbox.session()
            await first.run("x = 1")
            await second.run("y = 1")
            values = [(await first.run("x")).value, (await second.run("y")).value]
            await first.close()
            values.append((await first.run("'x' in globals()")).value)
            return values

    assert box.do(play()) == ["1", "1", "False"]


def test_waiting_for_a_place_ends_with_the_wait(box: Box):
    async def play() -> str | None:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            async with sandbox.session():
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await sandbox.session().run("1")
                assert time.monotonic() - begin < 30
            return (await sandbox.session().run("3")).value

    assert box.do(play()) == "3"


def test_by_default_sessions_fit_into_the_memory_of_the_machine(box: Box):
    async def made(memory_mb: int) -> int:
        return Sandbox(replace(LIMITS, memory_mb=memory_mb), isolation=box.sandbox.isolation).sessions

    total_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert box.do(made(1 << 40)) == 4
    assert box.do(made(total_mb // 8)) * (total_mb // 8) <= total_mb
