"""Against a stand-in that speaks SandboxFusion's protocol and runs each program with this Python."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bough.errors import InputError
from bough.sandbox import remote
from bough.sandbox.base import Result, SandboxError, SandboxLimits
from bough.sandbox.remote import RemoteSandbox


class Fusion(BaseHTTPRequestHandler):
    failures: list[tuple[int, str]] = []
    requests: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Fusion.requests.append({"path": self.path, **request})
        if Fusion.failures:
            status, text = Fusion.failures.pop(0)
            self._answer(status, text.encode())
            return
        try:
            done = subprocess.run(
                [sys.executable, "-c", request["code"]], capture_output=True, timeout=request["run_timeout"]
            )
            run = {"status": "Finished" if done.returncode == 0 else "Error", "return_code": done.returncode}
            out, err = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            run, out, err = {"status": "TimeLimitExceeded"}, late.stdout or b"", late.stderr or b""
        run |= {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace"), "execution_time": 0.5}
        ok = run["status"] == "Finished"
        self._answer(
            200, json.dumps({"status": "Success" if ok else "Failed", "message": "", "run_result": run}).encode()
        )

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fusion)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    Fusion.failures, Fusion.requests = [], []
    monkeypatch.setattr(remote, "BACK_OFF_S", 0.01)


def run(url: str, *cells: str, **more: Any) -> list[Result]:
    async def play() -> list[Result]:
        async with RemoteSandbox(url, SandboxLimits(**more)).session() as session:
            return [await session.run(cell) for cell in cells]

    return asyncio.run(play())


def test_a_program_has_its_output_its_value_and_its_error(url: str):
    (result,) = run(url, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (result.stdout, result.stderr, result.value, result.error) == ("out\n", "err\n", "42", None)
    assert result.ok and result.duration_s == 0.5
    assert Fusion.requests[0]["path"] == "/run_code" and Fusion.requests[0]["language"] == "python"
    (failed,) = run(url, "1 / 0")
    assert str(failed.error).endswith("ZeroDivisionError: division by zero") and "<cell 1>" in str(failed.error)


def test_a_session_repeats_its_earlier_cells_in_silence(url: str):
    results = run(url, "x = 1\nprint('once')", "x += 1\nx", "x")
    assert [(result.stdout, result.value) for result in results] == [("once\n", None), ("", "2"), ("", "2")]


def test_a_program_that_takes_too_long_is_told_and_its_session_forgotten(url: str):
    results = run(url, "x = 1", "import time\ntime.sleep(600)", "'x' in globals()", timeout_s=2.0)
    assert results[1].timed_out and results[1].killed == "time" and not results[1].alive
    assert results[2].value == "False"


def test_a_program_that_ends_early_or_prints_much_is_told(url: str):
    (result,) = run(url, "import os\nprint('before', flush=True)\nos._exit(3)")
    assert result.error == "The process exited with status 3 before the end of the code."
    assert result.stdout == "before\n"
    (result,) = run(url, "print('x' * 100_000)", output_bytes=100)
    assert result.truncated and len(result.stdout) < 200


def test_a_busy_server_is_asked_again(url: str):
    Fusion.failures = [(503, "busy"), (429, "slow down")]
    assert run(url, "1")[0].value == "1" and len(Fusion.requests) == 3


@pytest.mark.parametrize(
    ("failures", "asked", "said"),
    [
        ([(503, "busy")] * 4, 4, "it answered 503"),
        ([(404, "no")], 1, "it answered 404"),
        ([(200, "not json")] * 4, 4, "cannot be used"),
        ([(200, "[1]")] * 4, 4, "not a JSON object"),
        ([(200, '{"status": "SandboxError", "message": "no room"}')], 1, "no room"),
        ([(200, '{"status": "Success"}')], 1, "no run_result"),
    ],
)
def test_a_server_that_fails_is_a_sandbox_error(url: str, failures: list[Any], asked: int, said: str):
    Fusion.failures = failures
    with pytest.raises(SandboxError, match=said):
        run(url, "1")
    assert len(Fusion.requests) == asked


def test_a_server_that_is_not_there_is_a_sandbox_error():
    with pytest.raises(SandboxError, match="cannot be used"):
        run("http://127.0.0.1:9", "1")


def test_only_http_is_spoken():
    with pytest.raises(InputError, match="must begin with http"):
        RemoteSandbox("file:///etc/passwd")
    assert RemoteSandbox("http://host:1/run_code/").url == "http://host:1/run_code"


def test_a_program_that_asks_is_sent_again_with_its_answers(url: str, monkeypatch: pytest.MonkeyPatch):
    async def play() -> list[Any]:
        asked = []

        async def answer(text: str) -> str:
            asked.append(text)
            return text.upper()

        sandbox = RemoteSandbox(url)
        whole = await sandbox.run("print('out')\nask('a') + ask('b')", answer=answer)
        async with sandbox.session() as session:
            await session.run("x = 'c'")
            later = await session.run("ask(x)", answer=answer)
        monkeypatch.setattr(remote, "QUESTIONS", 3)
        endless = await sandbox.run("while True: ask('again')", answer=answer)
        return [whole.value, whole.stdout, later.value, asked[:3], endless.error]

    value, stdout, later, asked, endless = asyncio.run(play())
    assert (value, stdout, later, asked) == ("'AB'", "out\n", "'C'", ["a", "b", "c"])
    assert "asked more than 3 times" in endless
