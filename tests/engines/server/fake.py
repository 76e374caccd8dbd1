"""An engine that needs no model: the tokens of a text are its bytes, and every reply is what a function says."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from bough.config.groups import SamplingConfig
from bough.engines.base import Answer
from bough.engines.server.app import LOOPBACK_NAMES, Access, make_app
from bough.engines.server.session import SessionConfig
from bough.engines.server.store import Recorder, Store
from bough.types import Call, Message

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
LOOK = '<tool_call>\n{"name":"look","arguments":{"at":"shelf"}}\n</tool_call>'


def count_replies() -> Callable[[list[Message]], str]:
    """Replies "reply 1", "reply 2", …"""
    numbers = iter(range(1, 1_000_000))
    return lambda _: f"reply {next(numbers)}"


@dataclass
class FakeEngine:
    """`gate`, while it is closed, holds back every reply; `asked` and `opened` say what came, unless it forgets.

    `offset` is added to sampled tokens: a text that is encoded again has other tokens, except in the chat
    that sampled it.
    """

    say: Callable[[list[Message]], str] = field(default_factory=count_replies)
    name: str = "fake"
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    gate: asyncio.Event | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    cancelled: int = 0
    forgets: bool = False
    offset: int = 0

    def open(self, episode: str, *, seed: int) -> "FakeChat":
        if not self.forgets:
            self.opened.append(episode)
        return FakeChat(self, episode)

    async def close(self) -> None:
        return

    def config(self, name: str) -> SessionConfig:
        return SessionConfig(lambda number: self.open(f"{name}/{number}", seed=0), self.sampling)


@dataclass
class FakeChat:
    engine: FakeEngine
    episode: str
    seen: list[int] = field(default_factory=list)
    seen_text: str = ""

    async def answer(
        self,
        messages: list[Message],
        tools: list[Any],
        *,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
    ) -> Answer:
        asked = {"messages": messages, "tools": tools, "sampling": sampling, "seed": seed, "chat": self.episode}
        if not self.engine.forgets:
            self.engine.asked.append(asked)
        try:
            await asyncio.sleep(0)
            if self.engine.gate is not None:
                await self.engine.gate.wait()
        except asyncio.CancelledError:
            self.engine.cancelled += 1
            raise
        text = self.engine.say(messages)
        prompt_text = rendered(messages)
        known = len(self.seen_text) if prompt_text.startswith(self.seen_text) else 0
        prompt = [*(self.seen if known else []), *prompt_text[known:].encode()]
        ids = [token + self.engine.offset for token in text.encode()]
        self.seen, self.seen_text = prompt + ids, prompt_text + text
        call = Call(prompt_ids=prompt, completion_ids=ids, logprobs=[-0.5] * len(ids), text=text, finish="stop")
        return Answer(Message(role="assistant", content=text), call, "stop", len(prompt), len(ids))

    def close(self) -> None:
        if not self.engine.forgets:
            self.engine.closed.append(self.episode)


def rendered(messages: list[Message]) -> str:
    """The prompt of a conversation. A reply follows its prompt without a mark."""
    heads = ("" if one.role == "assistant" else f"{one.role}:" for one in messages)
    said = (one.content + "".join(call.model_dump_json() for call in one.tool_calls) for one in messages)
    return "".join(f"{head}{text}\n" for head, text in zip(heads, said, strict=True))


def make_recorder(engine: FakeEngine, store: Store | None = None, **more: Any) -> Recorder:
    return Recorder(agent=engine.name, config_of=engine.config, store=store, **more)


def client(recorder: Recorder, access: Access | None = None) -> httpx2.AsyncClient:
    """A client of the application, without a socket in between."""
    allowed = access or Access(LOOPBACK_NAMES)
    app = make_app(recorder, allowed, model="fake", token_texts=lambda ids: list(map(chr, ids)))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1")


async def post_to(app: Any, path: str, content: Any) -> Any:
    """The JSON that an application answers, without the cost of a client."""
    parts: list[bytes] = []
    given: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps(content).encode()}]

    async def receive() -> dict[str, Any]:
        return given.pop() if given else await asyncio.Future()

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1")]
    await app({"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}, receive, send)
    return json.loads(b"".join(parts))


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": list(messages), **more}


def events(text: str) -> list[Any]:
    """The data of server-sent events."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), lines
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]
