"""HTTP answers, and reading a request's body within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bough.serving.refusal import RefusedError

MAX_BODY = 32 << 20
BODY_TIMEOUT_S = 60.0


class ClientGoneError(Exception):
    """The client has closed its connection."""


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), status, headers, media_type="application/json")


def refused(refusal: RefusedError) -> Response:
    """An error body as OpenAI's clients read it."""
    headers = {"retry-after": "1"} if refusal.status == 429 else None
    return json_answer(refusal.to_json(), refusal.status, headers)


async def read_body(request: Request) -> bytes:
    """The whole body. One that is too large or too slow is refused."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s", code="timeout") from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


async def finished(
    request: Request,
    work: asyncio.Future[Any],
    patience_s: float | None = None,
    sooner: Coroutine[Any, Any, None] | None = None,
) -> bool:
    """Waits for `work`, at most `patience_s` or until `sooner`; returns whether it is done.

    If the client hangs up before that, `work` is cancelled and ClientGoneError raised. The body
    must have been read.
    """
    gone = asyncio.ensure_future(_gone(request))
    others = {gone, *([asyncio.ensure_future(sooner)] if sooner is not None else [])}
    try:
        await asyncio.wait({work, *others}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and gone.done():
            raise ClientGoneError
        return work.done()
    except BaseException:
        work.cancel()
        await asyncio.wait([work])
        raise
    finally:
        for other in others:
            other.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large() -> RefusedError:
    return RefusedError(413, f"the body is larger than {MAX_BODY >> 20} MiB", code="too_large")
