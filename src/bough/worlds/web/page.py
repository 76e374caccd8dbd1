"""The pages of a browser: loaded, started with a seed, read, and acted on with real mouse and key events.

Starting the next problem in a page that is loaded already takes half the time of loading
it again. It is not done on pages that carry something from one problem to the next
(`RELOADED`).
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError
from bough.worlds.web import actions
from bough.worlds.web.actions import Action, Line, read_line
from bough.worlds.web.browser import HEIGHT, WIDTH, Browser

# The part of the window that a page draws its task in; the rest shows its clock and score.
TASK_WIDTH, TASK_HEIGHT = 160, 210
DRAG_STEPS = 10


class ActionRefusedError(Exception):
    """The page has no such element, or it cannot be used now. The message is for the agent."""


@dataclass(frozen=True)
class View:
    """What a page shows. `reward` is raw: without the deduction for time."""

    goal: str
    lines: tuple[Line, ...]
    done: bool
    reward: float
    reason: str
    left: bool = False


@cache
def _script() -> str:
    parts = [Path(__file__).with_name(f"{name}.js").read_text() for name in ("clock", "reading", "acting")]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "})();"


class Page:
    """A page that is used for one episode after the other. Use `await Page.open(browser)`."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target
        self.name = ""  # of the page that is loaded
        self._clipboard = ""
        self._held = False  # whether the mouse's button is down between actions

    @classmethod
    async def open(cls, browser: Browser) -> Page:
        call = browser.connection.call
        target = await call("Target.createTarget", url="about:blank", width=WIDTH, height=HEIGHT, newWindow=True)
        attached = await call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = cls(browser, attached["sessionId"], target["targetId"])
        await asyncio.gather(
            page._call("Page.enable"),
            page._call("Page.addScriptToEvaluateOnNewDocument", source=_script()),
            page._call("Emulation.setFocusEmulationEnabled", enabled=True),
            page._call("Page.setDownloadBehavior", behavior="deny"),
        )
        return page

    async def start(self, name: str, seed: int, mode: str) -> View:
        """Loads a page and starts its problem number `seed`."""
        self._clipboard = ""
        if self._held:
            self._held = False
            await self._mouse("mouseReleased", (WIDTH - 1, HEIGHT - 1), button="left", clickCount=1)
        # The mouse would hover over the new problem.
        await self._mouse("mouseMoved", (WIDTH - 1, HEIGHT - 1))
        if self.name != name or name in RELOADED:
            await self._load(name)
        step_ms = RESTLESS.get(name)
        return _view(await self._evaluate(f"bough.start({seed}, {json.dumps(mode)}, {json.dumps(step_ms)})"))

    async def _load(self, name: str) -> None:
        self.name = ""
        loaded = self.browser.connection.next_event(self.session, "Page.loadEventFired")
        answer = await self._call("Page.navigate", url=(html_folder() / f"{name}.html").as_uri())
        if answer.get("errorText"):
            raise EnvironmentFailedError(f"the browser could not load {name}: {answer['errorText']}")
        await self.browser.connection.arrival(loaded)
        if name in MENDED:
            style = f"{{textContent: {json.dumps(MENDED[name])}}}"
            await self._evaluate(f"document.head.append(Object.assign(document.createElement('style'), {style})), {{}}")
        for function in ESCAPED.get(name, ()):
            await self._evaluate(f"bough.escape({json.dumps(function)})")
        self.name = name

    async def act(self, action: Action) -> View:
        """Carries out an action and waits until the page has settled. Raises `ActionRefusedError`."""
        do = getattr(self, f"_do_{action.name}", None)
        if do is None:
            await self._ask(action.name, **action.arguments)
        else:
            if action.name.startswith("mouse_"):
                await self._ask("alive")
            await do(**action.arguments)
        return _view(await self._evaluate("bough.after()"))

    async def screenshot(self) -> bytes:
        """The task's part of the window, as a PNG file."""
        clip = {"x": 0, "y": 0, "width": TASK_WIDTH, "height": TASK_HEIGHT, "scale": 1}
        answer = await self._call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(answer["data"])

    async def close(self) -> None:
        await self.browser.connection.call("Target.closeTarget", targetId=self.target)

    async def _do_click(self, element: int | str) -> None:
        found = await self._ask("point", element=element)
        at = (found["x"], found["y"])
        if found["icon"]:
            # Many icons change under the mouse, and while the other picture loads there is nothing to press.
            await self._move(at)
            await self._evaluate(f"bough.hovering({json.dumps(element)})")
        await self._click(at)

    async def _do_hover(self, element: int | str) -> None:
        await self._move(await self._point(element))

    async def _do_mouse_click(self, x: float, y: float) -> None:
        await self._click((x, y))

    async def _do_mouse_move(self, x: float, y: float) -> None:
        await self._move((x, y))

    async def _do_mouse_down(self, x: float, y: float) -> None:
        await self._move((x, y))
        self._held = True
        await self._mouse("mousePressed", (x, y), button="left", buttons=1, clickCount=1)

    async def _do_mouse_up(self, x: float, y: float) -> None:
        await self._move((x, y))
        self._held = False
        await self._mouse("mouseReleased", (x, y), button="left", clickCount=1)

    async def _do_mouse_drag(self, from_x: float, from_y: float, to_x: float, to_y: float) -> None:
        await self._drag((from_x, from_y), (to_x, to_y))

    async def _do_drag(self, element: int | str, target: int | str) -> None:
        found = await self._ask("drag", element=element, target=target)
        begin, end = found["begin"], found["end"]
        corners = [end["via"]] if "via" in end else []
        await self._drag((begin["x"], begin["y"]), *((point["x"], point["y"]) for point in [*corners, end]))

    async def _do_fill(self, element: int | str, text: str) -> None:
        if (await self._ask("fill", element=element, text=text))["typed"]:
            return
        if text:
            await self._call("Input.insertText", text=text)
        else:
            await self._keys("Delete")

    async def _do_type(self, text: str, element: int | str | None) -> None:
        if element is not None:
            await self._click(await self._point(element))
        else:
            await self._ask("alive")
        for character in text:
            if character == "\n":
                await self._keys("Enter")
            elif character.isascii():
                await self._keys("Space" if character == " " else character)
            else:
                await self._call("Input.insertText", text=character)

    async def _do_press(self, key: str) -> None:
        selected = (await self._ask("selection"))["text"]
        # The browser's clipboard is one for all pages and would tie episodes together, so each page has its own.
        match key.lower():
            case "control+c":
                self._clipboard = selected
            case "control+x":
                self._clipboard = selected
                await self._keys("Delete")
            case "control+v":
                await self._call("Input.insertText", text=self._clipboard)
            case _:
                await self._keys(key)

    async def _point(self, element: int | str) -> tuple[float, float]:
        found = await self._ask("point", element=element)
        return found["x"], found["y"]

    async def _move(self, to: tuple[float, float]) -> None:
        held: dict[str, Any] = {"button": "left", "buttons": 1} if self._held else {}
        await self._mouse("mouseMoved", to, **held)

    async def _click(self, at: tuple[float, float]) -> None:
        self._held = False
        await asyncio.gather(
            self._mouse("mouseMoved", at),
            self._mouse("mousePressed", at, button="left", buttons=1, clickCount=1),
            self._mouse("mouseReleased", at, button="left", clickCount=1),
        )

    async def _drag(self, begin: tuple[float, float], *ends: tuple[float, float]) -> None:
        self._held = False
        await self._mouse("mouseMoved", begin)
        await self._mouse("mousePressed", begin, button="left", buttons=1, clickCount=1)
        for end in ends:
            for step in range(1, DRAG_STEPS + 1):
                share = step / DRAG_STEPS
                between = (begin[0] + share * (end[0] - begin[0]), begin[1] + share * (end[1] - begin[1]))
                await self._mouse("mouseMoved", between, button="left", buttons=1)
            begin = end
        await self._mouse("mouseReleased", begin, button="left", clickCount=1)

    async def _mouse(self, kind: str, at: tuple[float, float], **more: Any) -> None:
        await self._call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)

    async def _keys(self, combination: str) -> None:
        await asyncio.gather(*(self._call("Input.dispatchKeyEvent", **event) for event in actions.strokes(combination)))

    async def _ask(self, name: str, **given: Any) -> dict[str, Any]:
        """Calls the page's script."""
        answer = await self._evaluate(f"bough.act({json.dumps(name)}, {json.dumps(given)})")
        if "refused" in answer:
            raise ActionRefusedError(answer["refused"])
        if "over" in answer:
            raise ActionRefusedError("The episode is over.")
        done: dict[str, Any] = answer["done"]
        return done

    async def _evaluate(self, expression: str) -> dict[str, Any]:
        answer = await self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise EnvironmentFailedError(
                f"the page's script failed: {details.get('exception', {}).get('description', details)}"
            )
        value: dict[str, Any] = answer["result"]["value"]
        return value

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self.browser.connection.call(method, self.session, **parameters)


def _view(seen: dict[str, Any]) -> View:
    return View(
        goal=seen["goal"],
        lines=tuple(map(read_line, seen["lines"])),
        done=seen["done"],
        reward=max(-1.0, min(1.0, float(seen["reward"]))),  # some pages have no bounds
        reason=seen["reason"],
        left=not seen["started"],
    )


MOST_IDLE_PAGES = 64
STARTS_PER_CORE = 2  # more than one: a page that starts also waits


class Pool:
    """The browser and its pages, shared by all episodes of one event loop. Use `Pool.here()`.

    A browser is started when the first episode asks for a page, and again whenever the last one has died. Pages
    are used again; one on which something went wrong is not. Hold `starts` while a page is taken and its problem
    starts: if all episodes start at the same time, the browser works on their pages in turn, all are ready only at
    the end, and until then the model has nothing to answer.
    """

    _pools: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Pool]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.browser: Browser | None = None
        self.num_started = 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.starts = asyncio.Semaphore(STARTS_PER_CORE * cores)
        self._idle: list[Page] = []
        self._starting = asyncio.Lock()

    @classmethod
    def here(cls) -> Pool:
        """The running loop's pool. Browsers of loops that are closed are ended."""
        loop = asyncio.get_running_loop()
        for other, pool in list(cls._pools.items()):
            if other.is_closed():
                pool.shut()
                del cls._pools[other]
        return cls._pools.setdefault(loop, cls())

    async def take(self, name: str = "") -> Page:
        """An idle page, preferably one that has `name` loaded, or a new one."""
        browser = await self._running()
        self._idle = [page for page in self._idle if page.browser is browser]
        if self._idle:
            place = next((i for i, page in enumerate(self._idle) if page.name == name), -1)
            return self._idle.pop(place)
        return await Page.open(browser)

    async def give_back(self, page: Page, *, sound: bool) -> None:
        """Takes a page back; one that is not `sound` is closed."""
        if page.browser is not self.browser or not page.browser.alive:
            return
        if sound and len(self._idle) < MOST_IDLE_PAGES:
            self._idle.append(page)
        else:
            with suppress(EnvironmentFailedError):
                await page.close()

    async def _running(self) -> Browser:
        async with self._starting:
            if self.browser is None or not self.browser.alive:
                self.shut()
                self.browser = await Browser.start()
                self.num_started += 1
            return self.browser

    def shut(self) -> None:
        """Ends the browser; the next episode starts another."""
        self._idle.clear()
        if self.browser is not None:
            self.browser.kill()
            self.browser = None


# Facts about pages by name: which can be solved from text, which reward is enough, which must be reloaded.
# Each list was found by trying (`benchmarks/web_pages.py`, `web_expert.py`, `web_restart.py`); a page that a later
# miniwob adds can be played too, but is not in the default.

# Pages that need vision, or cannot be won at all.
NOT_FOR_TEXT = {
    "count-sides": "the shape is drawn on a canvas",
    "hover-shape": "the page never ends and gives no reward",
}
# Pages whose reward depends on the distance in pixels or degrees. The full reward needs a point between pixels and
# comes by luck, if at all (27 of 400 tries); an expert that corrects its dot reaches these values on all of 100 seeds.
ENOUGH = {
    "bisect-angle": 0.95,
    "chase-circle": 0.9,  # the time before the mouse first reaches the circle is lost to every agent
    "circle-center": 0.95,
    "find-midpoint": 0.95,
    "right-angle": 0.9,
}
# Pages that never settle: an action takes this many milliseconds of their clock, so that an agent can keep up.
RESTLESS = {"chase-circle": 350, "hover-shape": 300, "moving-items": 350, "simon-says": 200}
# Pages whose layout breaks without a font as narrow as Arial, and the style that repairs it.
MENDED = {"daily-calendar": ".hour .hour-label { width: 17% !important }"}
# Pages that put what is typed into their HTML, where a script in it would run: the functions that do so.
ESCAPED = {"terminal": ("generateTerminalLine", "generateTerminalOutput")}
# Pages that keep state from one problem to the next (`benchmarks/results/web_restart.md`), their variants, and those
# that miniwob's authors call not deterministic.
RELOADED = frozenset(
    (
        "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
        "choose-date-nodelay", "click-dialog", "click-dialog-2", "click-pie", "click-pie-nodelay", "click-scroll-list",
        "drag-cube", "draw-circle", "focus-text-2", "hot-cold", "hover-shape", "moving-items", "order-food",
        "phone-book", "scroll-text", "scroll-text-2", "search-engine", "sign-agreement", "simon-says", "social-media",
        "social-media-all", "social-media-some", "stock-market", "terminal", "use-colorwheel", "use-colorwheel-2",
        "use-slider", "use-slider-2",
    )
)  # fmt: skip


@cache
def html_folder() -> Path:
    """The folder of the pages. The package is not imported: that would load Selenium and gymnasium."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("The web environment needs the miniwob package; install it with: pip install 'bough[web]'")
    return Path(next(iter(spec.submodule_search_locations))) / "html" / "miniwob"


@cache
def all_pages() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in html_folder().glob("*.html")))


def text_pages() -> tuple[str, ...]:
    """All pages that can be solved from goal and text."""
    return tuple(page for page in all_pages() if page not in NOT_FOR_TEXT)
