"""Whether a browser can play: started with the environment's own flags, and one page played to its end."""

from __future__ import annotations

import asyncio
import subprocess

from bough.environments.base import EnvironmentFailedError
from bough.worlds.web.actions import Action
from bough.worlds.web.browser import Browser
from bough.worlds.web.page import ActionRefusedError, Page

TIMEOUT_S = 120.0
PAGE = "click-test"  # one button, and nothing else to know


def trouble(program: str) -> str | None:
    """Why this browser cannot play a page; None if it can."""
    try:
        # A program that lacks a library says so here, and nowhere else.
        done = subprocess.run(  # noqa: S603  the browser itself
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        return complaint[-1] if complaint else f"its exit status is {done.returncode}"
    try:
        return asyncio.run(asyncio.wait_for(_play(program), TIMEOUT_S))
    except TimeoutError:
        return f"a page took longer than {TIMEOUT_S:.0f} s"
    except (EnvironmentFailedError, ActionRefusedError) as error:
        return str(error)


async def _play(program: str) -> str | None:
    browser = await Browser.start(program)
    try:
        page = await Page.open(browser)
        view = await page.start(PAGE, 0, "train")
        buttons = [line.number for line in view.lines if line.kind == "button"]
        view = await page.act(Action("click", {"element": buttons[0] if buttons else 1}))
        return None if view.done and view.reward == 1 else f"a click on the page {PAGE} did not reach its button"
    finally:
        browser.kill()
