"""One browser for all tests of a process. They are skipped where there is none, or no pages."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from bough.types import Task
from bough.worlds.web.browser import find
from bough.worlds.web.environment import Web

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Runs a coroutine in the one loop whose browser all tests share."""
    if find_spec("miniwob") is None:
        pytest.skip("the miniwob package is not installed")
    if find() is None:
        pytest.skip("no Chromium is installed; bough env setup web")
    with asyncio.Runner() as runner:
        yield runner.run
        runner.run(Web.shutdown())


def web(page: str, seed: int = 0, **data: Any) -> Web:
    return Web(Task(id=f"{page}-{seed}", seed=seed, data={"page": page, **data}))
