"""The engine against a real server that anybody with transformers can start: `transformers serve`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.chat.template import load_template
from bough.config.groups import SamplingConfig
from bough.engines.base import Answer
from bough.engines.openai import OpenAIEngine
from bough.models.resolve import resolve
from bough.types import Message
from tests.warm import Warm

# The `transformers` command. The hub's cache is chosen when huggingface_hub is imported, which it is already.
TRANSFORMERS = """
import os, runpy, sys
from huggingface_hub.utils import _cache_manager

_cache_manager.HF_HUB_CACHE = sys.argv.pop(1)
os.dup2(2, 1)
runpy.run_module("transformers.cli.transformers", run_name="__main__", alter_sys=True)
"""
START = [Message(role="system", content="You are in a house."), Message(role="user", content="Find the lamp.")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a word in its folder that this server draws by: without it, all its answers are greedy."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(resolve("tiny"), folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"do_sample": True}))
    return folder


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        pytest.skip("transformers serve needs its extra: pip install 'transformers[serving]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    (log.parent / "hub").mkdir()  # it lists the models of the hub cache, and breaks where there is none
    arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    hub = str(log.parent / "hub")
    with log.open("wb") as file:
        server = Warm(None, hub, *arguments, code=TRANSFORMERS, environment=environment, errors=file)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.communicate()


def ask(url: str, model: Path, seed: int, **sampling: Any) -> list[Answer]:
    """A conversation of two turns, in which the agent is shown its own words."""

    async def run() -> list[Answer]:
        engine = OpenAIEngine(
            url, str(model), SamplingConfig(max_new_tokens=12, **sampling), template=load_template("tiny")
        )
        try:
            await engine.check()
            chat = engine.open("e", seed=seed)
            first = await chat.answer(START, [])
            second = await chat.answer([*START, first.message, Message(role="user", content="And now?")], [])
            return [first, second]
        finally:
            await engine.close()

    return asyncio.run(run())


def test_it_answers_without_tokens_as_its_seed_and_temperature_say(url, model, caplog):
    first, second = ask(url, model, seed=1)
    assert first.call is None and second.call is None
    assert "does not know return_token_ids: no exact tokens" in caplog.text
    assert first.message.content and first.finish == "length" and first.num_completion_tokens == 12
    assert second.num_prompt_tokens > first.num_prompt_tokens
    again, other = ([answer.message for answer in ask(url, model, seed=seed)] for seed in (1, 2))
    assert again == [first.message, second.message] != other
    assert ask(url, model, seed=1, temperature=0)[0].message == ask(url, model, seed=2, temperature=0)[0].message
