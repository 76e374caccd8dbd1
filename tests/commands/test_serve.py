"""`bough serve` on the command line."""

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.commands import serve as api
from bough.data.reader import read
from tests.engines.server.fake import FakeEngine, body, user


def ask(url: str) -> None:
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body(user("Hi"))).encode())
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == "reply 1"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop(
    stop: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    visits = []

    async def visit() -> None:
        while not (out := capsys.readouterr().out):
            await asyncio.sleep(0.001)
        visits.append(json.loads(out))
        await asyncio.to_thread(ask, visits[0]["base_url"])
        os.kill(os.getpid(), stop)

    async def load(*_: Any) -> FakeEngine:
        visits_task.append(asyncio.create_task(visit()))
        return FakeEngine()

    visits_task: list[Any] = []
    monkeypatch.setattr(api, "load_engine", load)
    assert main(["serve", "--model", "tiny", "--record", str(tmp_path / "r"), "--port", "0", "--json"]) == 0
    assert visits[0]["record"] == str(tmp_path / "r")
    assert len(list(read(tmp_path / "r"))) == 1


def test_an_address_for_others_needs_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--model", "tiny", "--record", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "put a key of at least 16 characters" in capsys.readouterr().err
