"""The sandboxes that episodes share: one of a kind for each event loop."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from bough.sandbox.base import Limits, Runner
from bough.sandbox.pool import Sandbox
from bough.sandbox.remote import RemoteSandbox

# Consent to go without walls is the user's, given where this process was started. A task
# cannot give it: tasks come from files.
CONSENT = "BOUGH_UNSAFE_NO_SANDBOX"
Key = tuple[Limits, str | None, str]
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Runner]] = WeakKeyDictionary()


def shared(limits: Limits, url: str | None = None, warm_up: str = "") -> Runner:
    """The sandbox of this kind, made when it is first asked for."""
    kinds = _SHARED.setdefault(asyncio.get_running_loop(), {})
    key = (limits, url, warm_up)
    if key not in kinds:
        kinds[key] = (
            Sandbox(limits, unsafe=os.environ.get(CONSENT) == "1", warm_up=warm_up)
            if url is None
            else RemoteSandbox(url, limits)
        )
    return kinds[key]


async def close_all() -> None:
    """Ends the sandboxes of this event loop."""
    for runner in _SHARED.pop(asyncio.get_running_loop(), {}).values():
        await runner.close()
