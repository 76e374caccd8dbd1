"""An environment's call ends in a result, in the environment's failure, or in silence where it was abandoned."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bough.environments import isolated
from bough.environments.base import EnvironmentFailedError


class Abandoning:
    """Starts a call on a loop that then ends, as a blocked thread's does when the process forgets it."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
        def start_and_leave() -> None:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)
            task = loop.create_task(work())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            del task

        await asyncio.to_thread(start_and_leave)
        raise TimeoutError


def test_an_abandoned_call_is_collected_in_silence(monkeypatch: pytest.MonkeyPatch):
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with pytest.raises(EnvironmentFailedError, match="step took longer than 1 s"):
        asyncio.run(isolated._bounded(Abandoning(), "step", asyncio.Event().wait, 1))  # type: ignore[arg-type]
    gc.collect()
    assert not complaints
