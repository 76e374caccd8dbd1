import asyncio
import json
import os

import pytest

from bough.environments.base import EnvironmentFailedError
from bough.worlds.web import browser as cdp
from bough.worlds.web.browser import Connection


class Browser:
    """The other end of the pipes, by hand."""

    def __init__(self):
        self.reading, self.their_end = os.pipe()
        self.our_end, self.writing = os.pipe()
        self.connection = Connection()

    async def open(self):
        await self.connection.open(self.our_end, self.their_end)
        return self

    def heard(self):
        return [json.loads(part) for part in os.read(self.reading, 1 << 20).split(b"\0")[:-1]]

    def say(self, *messages):
        os.write(self.writing, b"".join(json.dumps(message).encode() + b"\0" for message in messages))


def test_answers_go_to_the_calls_they_belong_to():
    async def main():
        browser = await Browser().open()
        first = asyncio.ensure_future(browser.connection.call("A", x=1))
        second = asyncio.ensure_future(browser.connection.call("B", "page"))
        await asyncio.sleep(0.01)
        assert browser.heard() == [
            {"id": 1, "method": "A", "params": {"x": 1}},
            {"id": 2, "method": "B", "params": {}, "sessionId": "page"},
        ]
        browser.say({"id": 2, "result": {"b": 2}}, {"id": 1, "result": {"a": 1}})
        return await first, await second

    assert asyncio.run(main()) == ({"a": 1}, {"b": 2})


def test_a_message_may_come_in_pieces():
    async def main():
        browser = await Browser().open()
        call = asyncio.ensure_future(browser.connection.call("A"))
        await asyncio.sleep(0.01)
        text = json.dumps({"id": 1, "result": {"é": "x" * 1000}}).encode()
        for piece in (text[:5], text[5:600], text[600:], b"\0"):
            os.write(browser.writing, piece)
            await asyncio.sleep(0.01)
        return await call

    assert asyncio.run(main()) == {"é": "x" * 1000}


def test_an_event_reaches_the_page_that_waits_for_it():
    async def main():
        browser = await Browser().open()
        mine, other = (browser.connection.next_event(page, "loaded") for page in ("mine", "other"))
        browser.say({"method": "loaded", "sessionId": "mine", "params": {"n": 1}})
        assert await browser.connection.arrival(mine) == {"n": 1}
        assert not other.done()

    asyncio.run(main())


def test_a_refusal_is_the_worlds_fault():
    async def main():
        browser = await Browser().open()
        call = asyncio.ensure_future(browser.connection.call("A"))
        await asyncio.sleep(0.01)
        browser.say({"id": 1, "error": {"message": "no such method"}})
        with pytest.raises(EnvironmentFailedError, match="no such method"):
            await call

    asyncio.run(main())


def test_when_the_browser_dies_whatever_is_under_way_and_whatever_comes_fails():
    async def main():
        browser = await Browser().open()
        waiting = [asyncio.ensure_future(browser.connection.call("A")) for _ in range(3)]
        event = browser.connection.next_event("page", "loaded")
        await asyncio.sleep(0.01)
        os.close(browser.writing)
        for call in waiting:
            with pytest.raises(EnvironmentFailedError, match="died"):
                await call
        with pytest.raises(EnvironmentFailedError, match="died"):
            await browser.connection.arrival(event)
        with pytest.raises(EnvironmentFailedError, match="died"):
            await browser.connection.call("B")

    asyncio.run(main())


@pytest.mark.parametrize(
    "news",
    [
        {"method": "Inspector.targetCrashed", "sessionId": "page", "params": {}},
        {"method": "Target.detachedFromTarget", "params": {"sessionId": "page"}},
    ],
)
def test_a_page_that_crashes_fails_its_own_calls_only(news):
    async def main():
        browser = await Browser().open()
        its = asyncio.ensure_future(browser.connection.call("A", "page"))
        others = asyncio.ensure_future(browser.connection.call("A", "other"))
        event = browser.connection.next_event("page", "loaded")
        await asyncio.sleep(0.01)
        browser.say(news)
        with pytest.raises(EnvironmentFailedError, match="crashed"):
            await its
        with pytest.raises(EnvironmentFailedError, match="crashed"):
            await browser.connection.arrival(event)
        with pytest.raises(EnvironmentFailedError, match="crashed"):
            await browser.connection.call("B", "page")
        browser.say({"id": 2, "result": {}})
        assert await others == {}

    asyncio.run(main())


def test_a_browser_that_does_not_answer_counts_as_dead(monkeypatch):
    monkeypatch.setattr(cdp, "CALL_TIMEOUT_S", 0.05)

    async def main():
        browser = await Browser().open()
        with pytest.raises(EnvironmentFailedError, match=r"did not answer Page\.navigate"):
            await browser.connection.call("Page.navigate")
        browser.say({"id": 1, "result": {}})  # too late, and no harm
        await asyncio.sleep(0.01)
        assert browser.connection.lost is None

    asyncio.run(main())


def test_a_pipe_that_breaks_while_we_write_ends_the_connection_in_silence(caplog):
    async def main():
        browser = await Browser().open()
        os.close(browser.reading)
        for _ in range(8):
            with pytest.raises(EnvironmentFailedError, match="died"):
                await browser.connection.call("A")
        assert browser.connection.lost == "the browser died"

    asyncio.run(main())
    assert caplog.records == []
