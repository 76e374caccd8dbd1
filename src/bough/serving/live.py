"""From sampling to a stream: the new text of a request's replies, until it is sent."""

from __future__ import annotations

import asyncio


class LiveText:
    """Text by choice. It is added and taken on one event loop."""

    def __init__(self) -> None:
        self._new: dict[int, list[str]] = {}
        self._event = asyncio.Event()

    def add(self, choice: int, text: str) -> None:
        self._new.setdefault(choice, []).append(text)
        self._event.set()

    def wake(self, _: object = None) -> None:
        """Ends the waiting of `changed`: no more text will come."""
        self._event.set()

    async def changed(self) -> None:
        """Waits for new text."""
        await self._event.wait()

    def take(self) -> list[tuple[int, str]]:
        """The text that is new since the last time."""
        new, self._new = self._new, {}
        self._event.clear()
        return [(choice, "".join(parts)) for choice, parts in new.items()]
