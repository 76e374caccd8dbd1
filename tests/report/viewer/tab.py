"""A page in a real browser, driven as a reader would: open, click, press keys; every complaint is written down."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bough.worlds.web import browser as browsers
from bough.worlds.web.browser import Browser

PATIENCE_S = 120.0  # far more than any page takes, also on a busy machine

COMPLAINTS = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


class Tab:
    """One tab. Use `await Tab.open()`."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.complaints: list[str] = []
        self.run: Callable[[Coroutine[Any, Any, Any]], Any]  # in the loop that the browser lives in

    @classmethod
    async def open(cls) -> Tab:
        # Nothing can be reached from this browser but our own server.
        flags = [flag for flag in browsers.FLAGS if not flag.startswith("--host-resolver-rules")]
        # One process for all pages of a server: each load would start another one.
        browsers.FLAGS = (*flags, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--process-per-site")
        browser = await Browser.start()
        made = await browser.connection.call("Target.createTarget", url="about:blank")
        attached = await browser.connection.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        tab = cls(browser, attached["sessionId"])
        tab._listen()
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.call(f"{domain}.enable")
        await tab.size(1280, 860)
        return tab

    def close(self) -> None:
        self.browser.kill()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self.browser.connection.call(method, self.session, **parameters)

    async def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def scheme(self, name: str) -> None:
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def goto(self, address: str) -> None:
        """Loads the page anew and waits until it shows something."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=address)
        await self.settled()

    async def leave(self) -> None:
        """Goes to an empty page, and waits for what the last one may still have to say."""
        await self.call("Page.navigate", url="about:blank")
        await self.until("location.href === 'about:blank'")
        await asyncio.sleep(0.1)

    async def settled(self, within_s: float = PATIENCE_S) -> None:
        """Waits until a page is shown and not waiting for an answer."""
        ready = "!!document.querySelector('main h1') && !document.querySelector('main[aria-busy]')"
        await self.until(ready, within_s)

    async def until(self, condition: str, within_s: float = PATIENCE_S) -> None:
        end = asyncio.get_running_loop().time() + within_s
        while not await self.evaluate(condition):
            assert asyncio.get_running_loop().time() < end, f"never came true: {condition}; {self.complaints}"
            await asyncio.sleep(0.02)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def text(self, selector: str = "main") -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def click(self, selector: str) -> None:
        """A real click in the middle of the element."""
        where = await self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    async def press(self, key: str) -> None:
        """A key as typed: a letter or sign, or a name such as Enter."""
        named = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
        code, text = named[key] if key in named else (ord(key.upper()), key)
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def picture(self, file: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))

    def _listen(self) -> None:
        connection = self.browser.connection
        receive = connection._receive

        def listening(message: dict[str, Any]) -> None:
            if message.get("method") in COMPLAINTS:
                self._note(message["method"], message["params"])
            receive(message)

        connection._receive = listening  # type: ignore[method-assign]

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and parameters["type"] not in ("error", "warning", "assert"):
            return
        self.complaints.append(f"{method}: {json.dumps(parameters)[:500]}")
