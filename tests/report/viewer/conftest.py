"""A real run folder, a server over it, and a browser: each made once for all tests of a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from bough.cli import main
from bough.engines.server.app import listen
from bough.report.viewer.contents import Root
from bough.report.viewer.index import Index
from bough.report.viewer.server import Door, FolderAnswers, door, make_app
from bough.worlds.web.browser import find
from tests.report.viewer.run_folder import fill
from tests.report.viewer.tab import Tab


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was really played: `bough collect`, `pairs`, `groups`, `eval`; curves and tokens as a run has them."""
    path = tmp_path_factory.mktemp("viewer") / "played"
    fill(path, main)
    return path


@pytest.fixture
def make_index() -> Callable[..., Index]:
    """An index of a folder or file, complete."""

    def make(path: Path) -> Index:
        index = Index(Root(path))
        index.catch_up()
        return index

    return make


@dataclass
class Server:
    """A server that runs. `address` ends in a slash."""

    address: str
    port: int
    answers: FolderAnswers


@contextmanager
def serving(path: Path, guarded: Door | None = None, model: str | None = None) -> Iterator[Server]:
    """A real server over `path`, for as long as it is needed."""
    index = Index(Root(path))
    index.catch_up()
    answers = FolderAnswers(index, model)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app = make_app(answers, guarded or door("127.0.0.1", remote=False, token=None))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{port}/", port, answers)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="session")
def browser_tab() -> Iterator[Tab]:
    if find() is None:
        pytest.skip("no Chromium is installed; bough env setup web")
    with asyncio.Runner() as runner:
        tab = runner.run(Tab.open())
        tab.run = runner.run
        yield tab
        tab.close()


@pytest.fixture
def tab(browser_tab: Tab) -> Iterator[Tab]:
    """The browser's tab; whatever it complains of fails the test."""
    browser_tab.run(browser_tab.leave())
    browser_tab.complaints.clear()
    yield browser_tab
    assert browser_tab.complaints == []
