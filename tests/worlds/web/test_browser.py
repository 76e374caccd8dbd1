import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError
from bough.worlds.web import browser as module
from bough.worlds.web.browser import Browser, Connection, find
from bough.worlds.web.environment import Web


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid, within_s=60):
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("run")
async def test_a_browser_answers_until_it_is_killed_and_leaves_nothing_behind():
    browser = await Browser.start()
    answer = await browser.connection.call("Browser.getVersion")
    assert "Chrome" in answer["product"] and browser.alive and browser.profile.is_dir()
    browser.kill()
    browser.kill()
    assert not browser.alive
    with pytest.raises(EnvironmentFailedError):
        await browser.connection.call("Browser.getVersion")
    assert gone(browser.pid) and not browser.profile.exists()


@pytest.mark.usefixtures("run")
async def test_a_profile_that_is_written_to_while_it_is_removed_goes_too(monkeypatch):
    browser = await Browser.start()
    removals = []

    def rmtree(path, **how):
        remove(path, **how)
        removals.append(path)
        if len(removals) == 1:  # what a helper of Chromium's does in its last moment
            (path / "Default").mkdir(parents=True)

    remove = module.shutil.rmtree
    monkeypatch.setattr(module.shutil, "rmtree", rmtree)
    browser.kill()
    assert removals == [browser.profile] * 2 and not browser.profile.exists()


@pytest.mark.usefixtures("run")
async def test_a_browser_that_dies_by_itself_is_noticed():
    browser = await Browser.start()
    os.killpg(browser.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailedError, match="died"):
        await browser.connection.call("Browser.getVersion")
    assert not browser.alive
    browser.kill()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "sys.exit()"])
def test_the_browser_dies_with_our_process_however_that_ends(how):
    code = f"""
import asyncio, os, sys
from bough.worlds.web.browser import Browser
browser = asyncio.run(Browser.start())
print(browser.pid, flush=True)
{how}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert gone(int(done.stdout)), done.stderr


def test_without_a_browser_the_user_is_told_what_to_do(monkeypatch):
    monkeypatch.delenv("BOUGH_CHROMIUM", raising=False)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert find() is None
    with pytest.raises(InputError, match="bough env setup web"):
        asyncio.run(Browser.start())
    assert "bough env setup web" in (Web.lacks() or "")


def test_the_headless_shell_is_preferred(tmp_path, monkeypatch):
    monkeypatch.delenv("BOUGH_CHROMIUM", raising=False)
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))  # no browser is unpacked there
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/bin/{name}" if "chromium" in name else None)
    assert find() == "/bin/chromium-headless-shell"


def test_a_browser_can_be_named(monkeypatch):
    monkeypatch.setenv("BOUGH_CHROMIUM", sys.executable)
    assert find() == sys.executable
    monkeypatch.setenv("BOUGH_CHROMIUM", "no-such-browser")
    with pytest.raises(InputError, match="no-such-browser"):
        find()


def test_a_program_that_is_no_browser_is_the_worlds_fault(monkeypatch, tmp_path):
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("BOUGH_CHROMIUM", str(program))
    with pytest.raises(EnvironmentFailedError, match="died"):
        asyncio.run(Browser.start())
    program.write_text("this is not a program")
    with pytest.raises(EnvironmentFailedError, match="does not start"):
        asyncio.run(Browser.start())


class Peer:
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


async def test_answers_go_to_the_calls_they_belong_to_though_they_come_in_pieces():
    peer = await Peer().open()
    first = asyncio.ensure_future(peer.connection.call("A", x=1))
    second = asyncio.ensure_future(peer.connection.call("B", "page"))
    third = asyncio.ensure_future(peer.connection.call("C"))
    await asyncio.sleep(0.01)
    assert peer.heard()[:2] == [
        {"id": 1, "method": "A", "params": {"x": 1}},
        {"id": 2, "method": "B", "params": {}, "sessionId": "page"},
    ]
    peer.say({"id": 2, "result": {"b": 2}}, {"id": 3, "error": {"message": "no such method"}})
    text = json.dumps({"id": 1, "result": {"é": "x" * 1000}}).encode()
    for piece in (text[:5], text[5:600], text[600:], b"\0"):
        os.write(peer.writing, piece)
        await asyncio.sleep(0.01)
    with pytest.raises(EnvironmentFailedError, match="no such method"):
        await third
    assert (await first, await second) == ({"é": "x" * 1000}, {"b": 2})


async def test_an_event_reaches_the_page_that_waits_for_it():
    peer = await Peer().open()
    mine, other = (peer.connection.next_event(page, "loaded") for page in ("mine", "other"))
    peer.say({"method": "loaded", "sessionId": "mine", "params": {"n": 1}})
    assert await peer.connection.arrival(mine) == {"n": 1}
    assert not other.done()


async def test_when_the_browser_dies_whatever_is_under_way_and_whatever_comes_fails():
    peer = await Peer().open()
    waiting = [asyncio.ensure_future(peer.connection.call("A")) for _ in range(3)]
    event = peer.connection.next_event("page", "loaded")
    await asyncio.sleep(0.01)
    os.close(peer.writing)
    for call in waiting:
        with pytest.raises(EnvironmentFailedError, match="died"):
            await call
    with pytest.raises(EnvironmentFailedError, match="died"):
        await peer.connection.arrival(event)
    with pytest.raises(EnvironmentFailedError, match="died"):
        await peer.connection.call("B")


@pytest.mark.parametrize(
    "news",
    [
        {"method": "Inspector.targetCrashed", "sessionId": "page", "params": {}},
        {"method": "Target.detachedFromTarget", "params": {"sessionId": "page"}},
    ],
)
async def test_a_page_that_crashes_fails_its_own_calls_only(news):
    peer = await Peer().open()
    its = asyncio.ensure_future(peer.connection.call("A", "page"))
    others = asyncio.ensure_future(peer.connection.call("A", "other"))
    event = peer.connection.next_event("page", "loaded")
    await asyncio.sleep(0.01)
    peer.say(news)
    with pytest.raises(EnvironmentFailedError, match="crashed"):
        await its
    with pytest.raises(EnvironmentFailedError, match="crashed"):
        await peer.connection.arrival(event)
    with pytest.raises(EnvironmentFailedError, match="crashed"):
        await peer.connection.call("B", "page")
    peer.say({"id": 2, "result": {}})
    assert await others == {}


async def test_a_browser_that_does_not_answer_counts_as_dead(monkeypatch):
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 0.05)
    peer = await Peer().open()
    with pytest.raises(EnvironmentFailedError, match=r"did not answer Page\.navigate"):
        await peer.connection.call("Page.navigate")
    peer.say({"id": 1, "result": {}})  # too late, and no harm
    await asyncio.sleep(0.01)
    assert peer.connection.lost is None


async def test_a_pipe_that_breaks_while_we_write_ends_the_connection_in_silence(caplog):
    peer = await Peer().open()
    os.close(peer.reading)
    for _ in range(8):
        with pytest.raises(EnvironmentFailedError, match="died"):
            await peer.connection.call("A")
    assert peer.connection.lost == "the browser died"
    assert caplog.records == []
