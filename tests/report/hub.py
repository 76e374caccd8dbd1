"""A stand-in for the Hub: as much of its HTTP interface as an upload uses, on a port of this machine."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_secret_of_the_test"


@dataclass
class Hub:
    """What was asked and what was uploaded. `refuses` is a status to answer everything with."""

    address: str = ""
    requests: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    refuses: int | None = None
    private: bool = True

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.refuses is not None:
            return self.refuses, {"error": f"no, {TOKEN}, not so"}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.address}/org/name", "name": "org/name"}
        if method == "GET" and path in ("/api/models/org/name", "/api/models/org/name/revision/main"):
            return 200, {"id": "org/name", "private": self.private, "siblings": [], "tags": [], "sha": "abc"}
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if path.startswith("/api/models/org/name/preupload/"):
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = [{"path": p, "uploadMode": "lfs" if p.endswith(".safetensors") else "regular"} for p in files]
            return 200, {"files": [mode | {"shouldIgnore": False} for mode in modes]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [one | {"actions": self._actions(one["oid"])} for one in json.loads(body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}
        if method == "PUT" and path.startswith("/blobs/"):
            assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
            self.blobs[path.rpartition("/")[2]] = body
            return 200, {}
        if path.startswith("/verify/"):
            return 200, {}
        if path.startswith("/api/models/org/name/commit/"):
            self._commit(body)
            return 200, {"commitUrl": f"{self.address}/org/name/commit/abc", "commitOid": "abc", "hookOutput": ""}
        return 404, {"error": f"the stand-in knows no {method} {path}"}

    def _actions(self, oid: str) -> dict[str, Any]:
        return {
            "upload": {"href": f"{self.address}/blobs/{oid}"},
            "verify": {"href": f"{self.address}/verify/{oid}"},
        }

    def _commit(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                self.files[value["path"]] = self.blobs[value["oid"]]


@contextmanager
def stand_in() -> Iterator[Hub]:
    """A hub that listens for as long as the block lasts."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}")
            status, content = hub.answer(self.command, self.path.partition("?")[0], body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_HEAD = _answer

        def log_message(self, format: str, *arguments: Any) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
