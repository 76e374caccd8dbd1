import asyncio
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
from bough.worlds.web.browser import Browser, find
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
def test_a_browser_answers_until_it_is_killed_and_leaves_nothing_behind():
    async def main():
        browser = await Browser.start()
        answer = await browser.connection.call("Browser.getVersion")
        assert "Chrome" in answer["product"] and browser.alive and browser.profile.is_dir()
        browser.kill()
        browser.kill()
        assert not browser.alive
        with pytest.raises(EnvironmentFailedError):
            await browser.connection.call("Browser.getVersion")
        return browser

    browser = asyncio.run(main())
    assert gone(browser.pid) and not browser.profile.exists()


@pytest.mark.usefixtures("run")
def test_a_profile_that_is_written_to_while_it_is_removed_goes_too(monkeypatch):
    async def main():
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

    asyncio.run(main())


@pytest.mark.usefixtures("run")
def test_a_browser_that_dies_by_itself_is_noticed():
    async def main():
        browser = await Browser.start()
        os.killpg(browser.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailedError, match="died"):
            await browser.connection.call("Browser.getVersion")
        assert not browser.alive
        browser.kill()

    asyncio.run(main())


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
