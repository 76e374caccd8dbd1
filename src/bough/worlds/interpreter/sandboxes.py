"""The sandboxes that episodes share: one per use and event loop."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from bough.sandbox.base import ProgramRunner, SandboxLimits
from bough.sandbox.pool import Sandbox
from bough.sandbox.remote import RemoteSandbox

# Only the user can allow running without isolation, by this variable or with the settings.
# A task cannot: tasks come from files.
CONSENT = "BOUGH_UNSAFE_NO_SANDBOX"
# Packages that grade answers or generate problems with their answers: hidden from the agent's programs.
HIDDEN = ("bough", "reasoning_gym", "math_verify", "latex2sympy2_extended")
Key = tuple[str, SandboxLimits, str | None, str]
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, ProgramRunner]] = WeakKeyDictionary()


def shared(
    use: str,
    limits: SandboxLimits,
    url: str | None = None,
    *,
    warm_up: str = "",
    hidden: bool = False,
    unsafe: bool = False,
) -> ProgramRunner:
    """The sandbox for a use, made when it is first asked for.

    Each use has its own, so that no process that runs an agent's program descends from
    one that has held tests or answers. `hidden` leaves the graders' packages out.
    """
    kinds = _SHARED.setdefault(asyncio.get_running_loop(), {})
    key = (use, limits, url, warm_up)
    if key not in kinds:
        unsafe = unsafe or os.environ.get(CONSENT) == "1"
        kinds[key] = (
            Sandbox(limits, unsafe=unsafe, warm_up=warm_up, hidden=HIDDEN if hidden else ())
            if url is None
            else RemoteSandbox(url, limits)
        )
    return kinds[key]


async def close_all() -> None:
    """Ends the sandboxes of this event loop."""
    for runner in _SHARED.pop(asyncio.get_running_loop(), {}).values():
        await runner.close()
