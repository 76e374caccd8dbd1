"""A small server that speaks OpenAI's wire, with answers that a test chooses."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, str]


@dataclass
class JudgingServer:
    """`answer` gets a request's body and gives a text, or a status and the body of the response."""

    answer: Callable[[dict[str, Any]], Answer]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def judging(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[JudgingServer]:
    served = JudgingServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            served.bodies.append(body)
            served.keys.append(self.headers.get("Authorization"))
            found = served.answer(body)
            status, content = found if isinstance(found, tuple) else (200, completion(found))
            self.send_response(status)
            packed = content.encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            self.wfile.write(packed)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text: str) -> str:
    """The body of a response."""
    message = {"role": "assistant", "content": text}
    return json.dumps(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "judge",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
        }
    )
