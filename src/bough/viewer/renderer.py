"""Asks the process that opens tokenizers and chat templates, `bough.viewer.rendering`; kills it when it takes long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

ANSWER_S = 10.0
# The first answer loads libraries, on a slow disk for long.
START_S = 180.0
MAX_ANSWER = 64 << 20


class RenderError(Exception):
    """There is no answer. The message completes a sentence that says why."""


class Renderer:
    """One process, started when it is needed and again after it was killed. One question at a time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self.answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises RenderError."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            if question["ask"] == "call":
                self._exchange({"ask": "prepare"}, START_S)
            answer = self._exchange(question, self.answer_s)
        if "missing" in answer:
            raise RenderError(str(answer["missing"]))
        return answer

    def close(self) -> None:
        """Ends the process; another question starts another one."""
        with self._lock:
            self._kill()

    def _start(self) -> None:
        self._kill()
        self._process = subprocess.Popen(
            # -P: no module is imported from the current folder.
            [sys.executable, "-P", "-m", "bough.viewer.rendering"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process)
        self._exchange({"ask": "nothing"}, START_S)

    def _exchange(self, question: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + limit_s
        try:
            # The process reads a whole question before it does anything with it.
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            found: dict[str, Any] = json.loads(self._line(deadline))
        except RenderError:
            self._kill()
            raise
        except (OSError, ValueError):
            self._kill()
            raise RenderError("the process that opens it died; it may take too much memory") from None
        return found

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise RenderError("it takes too long")
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise OSError("the process has ended")
                answer += piece
                if len(answer) > MAX_ANSWER:
                    raise RenderError("its answer is too long")
        return bytes(answer)

    def _kill(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not yet written cannot be any more
                stream.close()
