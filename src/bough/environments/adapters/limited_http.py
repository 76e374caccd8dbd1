"""HTTP with servers that are not trusted: an answer is read up to a limit, and never unpacked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2

MAX_BYTES = 100 * 2**20


def limited_client(*, headers: dict[str, str], timeout: httpx2.Timeout | float) -> httpx2.AsyncClient:
    """A client that follows no redirects and reads at most `MAX_BYTES` of an answer."""
    # A packed answer has no size that could be limited before it is unpacked.
    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"}, timeout=timeout, event_hooks={"response": [_limit]}
    )


async def _limit(response: httpx2.Response) -> None:
    packed = response.headers.get("content-encoding", "identity")
    if packed != "identity":
        raise httpx2.DecodingError(f"the answer is packed ({packed:.20}), though that was not asked for")
    response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_BYTES:
                raise httpx2.StreamError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
