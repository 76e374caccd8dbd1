"""A remote sandbox: programs run on a server with SandboxFusion's `/run_code` API.

Such a server keeps no state. A session sends its earlier cells again before the new one,
with their output discarded: names persist, but are computed again each time. A program
that asks the host is sent again with the answers so far, until it has no more questions.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bough.errors import InputError
from bough.event_loop import PASSING, PassingError, RetryLimits, retried
from bough.sandbox.base import Answer, Result, SandboxError, SandboxLimits
from bough.sandbox.inside import notebook
from bough.sandbox.inside.output import Output

RETRIES = 3
BACK_OFF_S = 0.5
NETWORK_S = 30.0
QUESTIONS = 200
DRIVER = """
import contextlib, io, json, os, sys
_book = Notebook({{}})
_cells, _answers = json.loads({cells!r})
def ask(text):
    if _answers:
        return _answers.pop(0)
    sys.__stdout__.write("\\n" + {mark!r} + json.dumps({{"ask": text}}))
    sys.__stdout__.flush()
    os._exit(0)
if _answers is not None:
    _book.module.__dict__["ask"] = ask
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for _cell in _cells[:-1]:
        _book.run(_cell)
_value, _error = _book.run(_cells[-1])
sys.stdout.flush()
print("\\n" + {mark!r} + json.dumps([_value, _error]))
"""


class RemoteSandbox:
    """A client of one server, for at most `requests` programs at a time."""

    def __init__(self, url: str, limits: SandboxLimits | None = None, *, requests: int = 32) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"sandbox_url is {url!r}; it must begin with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/run_code") + "/run_code"
        self.limits = limits or SandboxLimits()
        self._turns = asyncio.Semaphore(requests)

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a program."""
        return await self.run_cells([code], timeout_s, answer)

    def session(self) -> RemoteSession:
        return RemoteSession(self)

    async def close(self) -> None:
        return

    async def run_cells(self, cells: Sequence[str], timeout_s: float | None, answer: Answer | None = None) -> Result:
        """Runs the last of `cells` after the others."""
        timeout_s = self.limits.timeout_s if timeout_s is None else timeout_s
        answers: list[str] | None = None if answer is None else []
        for _ in range(QUESTIONS):
            mark = secrets.token_hex(16)
            result, question = await self._run_once([list(cells), answers], mark, timeout_s)
            if question is None or answer is None or answers is None:
                return result
            answers.append(await answer(question))
        return Result(error=f"The code asked more than {QUESTIONS} times, which is too often for a remote sandbox.")

    async def _run_once(self, cells: list[Any], mark: str, timeout_s: float) -> tuple[Result, str | None]:
        """The result of a program, or the question that it asks."""
        # The notebook that runs the cells is sent with them.
        program = Path(notebook.__file__).read_text() + DRIVER.format(cells=json.dumps(cells), mark=mark)
        request = {
            "code": program,
            "language": "python",
            "compile_timeout": timeout_s,
            "run_timeout": timeout_s,
            "memory_limit_MB": self.limits.memory_mb,
        }
        begin = time.monotonic()
        async with self._turns:
            answer = await self._ask(request, timeout_s + NETWORK_S)
        return self._result(answer, mark, time.monotonic() - begin)

    async def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        async def once() -> dict[str, Any]:
            try:
                return await asyncio.to_thread(_post, self.url, request, timeout_s)
            except urllib.error.HTTPError as error:
                said = f"it answered {error.code} {error.reason}"
                if error.code in PASSING:
                    raise PassingError(said) from None
                raise SandboxError(f"the sandbox at {self.url} cannot be used: {said}") from None
            except (OSError, ValueError) as error:
                raise PassingError(str(error)) from None

        try:
            return await retried(once, RetryLimits(retries=RETRIES, backoff_s=BACK_OFF_S))
        except PassingError as error:
            raise SandboxError(f"the sandbox at {self.url} cannot be used: {error}") from None

    def _result(self, answer: dict[str, Any], mark: str, duration_s: float) -> tuple[Result, str | None]:
        run = answer.get("run_result")
        if answer.get("status") == "SandboxError" or not isinstance(run, dict):
            raise SandboxError(f"the sandbox at {self.url} failed: {answer.get('message') or 'no run_result'}")
        stdout, found, last = str(run.get("stdout") or "").rpartition(f"\n{mark}")
        value = error = question = None
        if found:
            try:
                said = json.loads(last)
                if isinstance(said, dict):
                    question = str(said["ask"])
                else:
                    value, error = said
            except (ValueError, KeyError, TypeError):
                found = ""
        else:
            stdout = last
        timed_out = run.get("status") == "TimeLimitExceeded"
        if not found and not timed_out:
            error = f"The process exited with status {run.get('return_code')} before the end of the code."
        kept = [self._cut(text) for text in (stdout, str(run.get("stderr") or ""))]
        result = Result(
            stdout=kept[0].text,
            stderr=kept[1].text,
            value=None if value is None else self._cut(str(value)).text,
            error=None if error is None else self._cut(str(error)).text,
            timed_out=timed_out,
            killed="time" if timed_out else None,
            truncated=any(text.left_out for text in kept),
            alive=bool(found),
            duration_s=float(run.get("execution_time") or duration_s),
        )
        return result, question

    def _cut(self, text: str) -> Output:
        output = Output(self.limits.output_bytes)
        output.add(text.encode(errors="replace"))
        return output


class RemoteSession:
    """A session: the cells so far."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox
        self._cells: list[str] = []

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a cell. If it does not finish, the next cell starts with no names."""
        result = await self._sandbox.run_cells([*self._cells, code], timeout_s, answer)
        self._cells = [*self._cells, code] if result.alive else []
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cells = []


def _post(url: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, body, headers)  # noqa: S310  the scheme was checked
    with urllib.request.urlopen(asked, timeout=timeout_s) as answer:  # noqa: S310
        found = json.load(answer)
    if not isinstance(found, dict):
        raise ValueError("its answer is not a JSON object")
    return found
