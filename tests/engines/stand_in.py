"""A small real HTTP server on loopback that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bough.chat.template import ChatTemplate

Json = dict[str, Any]
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 64}]}


@dataclass
class Reply:
    """What comes back: JSON, or bytes as they are. `length` may claim more bytes than there are."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    length: int | None = None

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class StandIn:
    """`answer` is asked for each POST; GET /v1/models gives `models`."""

    answer: Callable[[Json], Reply]
    models: Any = field(default_factory=lambda: Reply(MODELS))
    asked: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    def reply(self, path: str, headers: dict[str, str], body: Json | None) -> Reply:
        self.paths.append(path)
        self.headers.append(headers)
        if body is None:
            return self.models if path == "/v1/models" else Reply({"detail": "Not Found"}, 404)
        self.asked.append(body)
        return self.answer(body)


def in_turn(*replies: Reply) -> Callable[[Json], Reply]:
    """Each reply once, then the last one again and again."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]


@contextmanager
def serving(answer: Callable[[Json], Reply] | Reply, **more: Any) -> Iterator[StandIn]:
    """The server, running."""
    stand_in = StandIn(answer if callable(answer) else in_turn(answer), **more)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            with lock:
                stand_in.at_once += 1
                stand_in.most_at_once = max(stand_in.most_at_once, stand_in.at_once)
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Json | None) -> None:
            reply = stand_in.reply(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            time.sleep(reply.delay_s)
            if body is not None:
                # Before the answer is read at the other end, so that the next request is not counted beside this one.
                with lock:
                    stand_in.at_once -= 1
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                length = len(reply.data) if reply.length is None else reply.length
                self.send_header("content-length", str(length))
                self.end_headers()
                self.wfile.write(reply.data)
            except OSError:  # the other end has given up
                self.close_connection = True
            if reply.length is not None:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()


def said(content: str | None, **more: Any) -> Reply:
    """A chat completion without tokens."""
    message = {"role": "assistant", "content": content, **more}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Reply(
        {"id": "1", "model": "tiny", "choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    )


def vllm_chat(template: ChatTemplate, text: str, body: Json, *, ended: bool = True, **choice: Any) -> Reply:
    """What vLLM answers: the fields of its ChatCompletionResponse, `text` as the model's answer."""
    tokenizer = template.tokenizer
    prompt = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [template.end_of_turn_id] * ended
    content = [
        {"token": tokenizer.decode([id]), "logprob": -0.5 - i, "bytes": None, "top_logprobs": []}
        for i, id in enumerate(ids)
    ]
    return Reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "tiny",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "tool_calls": [], "reasoning": None},
                    "logprobs": {"content": content} if body.get("logprobs") else None,
                    "finish_reason": "stop" if ended else "length",
                    "stop_reason": None,
                    "token_ids": ids if body.get("return_token_ids") else None,
                    **choice,
                }
            ],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt + ids)},
            "prompt_logprobs": None,
            "prompt_token_ids": list(prompt) if body.get("return_token_ids") else None,
        }
    )
