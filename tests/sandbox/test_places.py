"""Sessions share the places that a sandbox has, and wait for one."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from bough.sandbox import pool
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.pool import Sandbox
from tests.sandbox.conftest import LIMITS, Box


def test_many_sessions_share_a_few_places(box: Box):
    places, episodes = 4, 50
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


def test_a_session_without_a_place_waits_until_another_is_closed(
    box: Box, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool, "PATIENCE_S", 0.1)

    async def play() -> tuple[bool, str | None, str | None]:
        async with Sandbox(LIMITS, workers=1, sessions=1, isolation=box.sandbox.isolation) as sandbox:
            first = sandbox.session()
            await first.run("x = 1")
            second = asyncio.create_task(sandbox.session().run("2"))
            await asyncio.sleep(0.5)
            waited, value = not second.done(), (await first.run("x")).value
            await first.close()
            return waited, value, (await second).value

    assert box.do(play()) == (True, "1", "2")
    assert "0.1 s, 1 sessions may be open; if nothing moves, lower --concurrency" in caplog.text


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
