"""A judge's connection: an OpenAI-compatible server, answers kept on disk, and a count of what they cost.

An answer is kept under a digest of the whole request, and only after it was understood: what failed is
asked again next time. The key comes from the environment, goes into one header, and nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bough.cache import cache_folder
from bough.disk import read_json, write_json
from bough.errors import BoughError, InputError
from bough.loopback import is_loopback
from bough.retries import PASSING, PassingError, RetryLimits, retried, retry_after_s

T = TypeVar("T")
# Statuses that are about this one request: too long, or its content is refused.
REFUSED = {400, 413, 422}
MAX_BODY = 1 << 20
WORDS = 200  # of a server's explanation, in characters


class JudgeError(BoughError):
    """The judge gave no answer; what it was asked about stays without a score."""


class UnusableAnswerError(JudgeError):
    """The judge's server works, but its answer to this question is not what was asked for."""


class JudgeClient:
    """Asks one model at `base_url`. `key_variable` names the environment variable with the key, if it needs one."""

    def __init__(self, base_url: str, model: str, key_variable: str, *, timeout_s: float, retries: int) -> None:
        self.url = f"{_checked(base_url)}/chat/completions"
        self.model, self.timeout_s = model, timeout_s
        self.limits = RetryLimits(retries=retries, longest_wait_s=timeout_s)
        self.used: Counter[str] = Counter()
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._key = os.environ.get(key_variable, "").strip()
        if self._key and urlsplit(self.url).scheme == "http" and not is_loopback(urlsplit(self.url).hostname or ""):
            raise InputError(f"the judge's address is not https; the key in {key_variable} would be sent unencrypted")

    async def ask(self, messages: list[dict[str, str]], read: Callable[[str], T]) -> T:
        """What `read` makes of the answer, from the disk where it was given before.

        An answer for which `read` raises ValueError is asked for again. Raises UnusableAnswerError where none
        could be used, JudgeError where there is none in time.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "response_format": {"type": "json_object"},
        }
        kept = _place(self.url, body)
        try:
            found = read(read_json(kept)["answer"])
            self.used["cached"] += 1
            return found
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not asked before, or the file is damaged
        unusable: list[str] = []

        async def once() -> tuple[str, T]:
            answer = self._text(await self._post(body))
            try:
                return answer, read(answer)
            except ValueError as error:
                unusable.append(f"the judge's answer cannot be used: {error}")
                raise PassingError(unusable[-1]) from None

        try:
            async with asyncio.timeout(self.timeout_s):
                answer, found = await retried(once, self.limits, sleep=self.sleep)
        except (TimeoutError, PassingError, JudgeError) as error:
            self.used["failed"] += 1
            if unusable:
                raise UnusableAnswerError(unusable[-1]) from None
            if isinstance(error, JudgeError):
                raise
            late = f"{self.url} gave no answer within {self.timeout_s:g} s"
            raise JudgeError(late if isinstance(error, TimeoutError) else str(error)) from None
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"answer": answer})
        return found

    async def _post(self, body: dict[str, Any]) -> bytes:
        """The content of the server's answer."""
        import httpx2

        self.used["requests"] += 1
        # Not compressed: a few kilobytes of Brotli unpack to gigabytes before their size can be checked.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        # A client for each request: rewards run on event loops that end with them. Redirects are not followed.
        try:
            async with (
                httpx2.AsyncClient(timeout=self.timeout_s, headers=headers) as client,
                client.stream("POST", self.url, json=body) as response,
            ):
                content = bytearray()
                async for piece in response.aiter_raw():
                    content += piece
                    if len(content) > MAX_BODY:
                        raise UnusableAnswerError(f"{self.url} answered more than {MAX_BODY >> 20} MiB")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            said = self._scrubbed((str(error) or type(error).__name__).encode())
            raise PassingError(f"{self.url} cannot be reached: {said}") from None
        if response.status_code == 200:
            return bytes(content)
        message = f"{self.url} answered {response.status_code}: {self._scrubbed(bytes(content))}"
        if response.status_code in PASSING:
            raise PassingError(message, retry_after_s(response.headers.get("retry-after")))
        raise UnusableAnswerError(message) if response.status_code in REFUSED else JudgeError(message)

    def _text(self, content: bytes) -> str:
        try:
            answer = json.loads(content)
            for name in ("prompt_tokens", "completion_tokens"):
                count = (answer.get("usage") or {}).get(name)
                self.used[name] += count if isinstance(count, int) else 0
            text = answer["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise JudgeError(f"{self.url} answered something that is not a chat completion") from None
        if not isinstance(text, str):
            raise UnusableAnswerError(f"{self.url} answered without a text")
        return text

    def _scrubbed(self, content: bytes) -> str:
        said = content.decode(errors="replace")
        return (said.replace(self._key, "[key]") if self._key else said)[:WORDS]


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InputError(f"the judge's base_url is {url!r:.80}; it must be an address such as http://localhost:8000/v1")
    return url.rstrip("/")


def _place(url: str, body: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()
    return cache_folder() / "judge" / name[:2] / f"{name}.json"
