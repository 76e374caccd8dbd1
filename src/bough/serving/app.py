"""The endpoint's addresses.

POST /v1/chat/completions             one request; the header X-Session-ID names its session
POST /s/NAME/v1/chat/completions      a request of the session NAME
POST /s/NAME/end                      closes the session: {"success": true, "reward": 0.7, "task": "…"}
GET  /v1/models, /s/NAME/v1/models    the model that is served
GET  /health
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bough.engines.base import Answer
from bough.serving.access import Access, Guard
from bough.serving.answer import ClientGoneError, finished, json_answer, read_body, refused
from bough.serving.event_stream import EventStream, event
from bough.serving.live import LiveText
from bough.serving.recorder import Recorder
from bough.serving.refusal import RefusedError, refusal_of
from bough.serving.request import ChatRequest, read_object, read_request
from bough.serving.response import Choice, Completion, model_json, models_json
from bough.serving.trajectory import read_outcome
from bough.types import Message

SESSION = "x-session-id"
# nginx's word for a client that closed its connection; it is never sent.
GONE = 499
# How long a stream may be silent, and what is sent then: a comment, which clients skip.
KEEP_ALIVE_S = 10.0
WAITING = b": waiting\n\n"
# The replies of a request, and the texts of token ids, where the tokenizer is at hand.
Replies = list[tuple[Answer, Message]]
TokenTexts = Callable[[list[int]], list[str]]


def make_app(recorder: Recorder, access: Access, *, model: str, token_texts: TokenTexts | None = None) -> Guard:
    """The application. `model` is the name in its answers; the name in a request is not compared with it."""
    api = Api(recorder, model, token_texts)
    routes = [Route("/health", _guarded(api.health)), Route("/s/{session}/end", _guarded(api.end), methods=["POST"])]
    for prefix in ("", "/s/{session}"):
        routes += [
            Route(f"{prefix}/v1/chat/completions", _guarded(api.complete), methods=["POST"]),
            Route(f"{prefix}/v1/models", _guarded(api.models)),
            Route(f"{prefix}/v1/models/{{model:path}}", _guarded(api.models)),
        ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        recorder.start()
        yield
        await recorder.close()

    errors = {404: _unknown_address, 405: _wrong_method}
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=errors), access)


@dataclass(frozen=True)
class Api:
    """What each address answers."""

    recorder: Recorder
    model: str
    token_texts: TokenTexts | None = None

    async def complete(self, request: Request) -> Response:
        session = request.path_params.get("session") or request.headers.get(SESSION)
        try:
            asked = read_request(await read_body(request))
        except RefusedError as refusal:
            self.recorder.refuse(session, refusal)
            raise
        if not asked.stream:
            replies = asyncio.ensure_future(self.recorder.answer(session, asked))
            await finished(request, replies)
            return json_answer(self._completion(asked, replies.result()).to_json())
        live = LiveText()
        # A token's log-probability belongs beside its text: with them a reply is sent when it is complete.
        on_text = None if asked.logprobs else live.add
        replies = asyncio.ensure_future(self.recorder.answer(session, asked, on_text))
        replies.add_done_callback(live.wake)
        # What fails before it has any content has a status of its own, unless it takes long.
        if await finished(request, replies, KEEP_ALIVE_S, sooner=live.changed()):
            replies.result()
        return EventResponse(self._events(asked, live, replies), replies)

    async def end(self, request: Request) -> Response:
        body = await read_body(request)
        outcome = read_outcome(read_object(body) if body.strip() else {})
        trajectory = await self.recorder.end(request.path_params["session"], outcome)
        return json_answer(
            {
                "id": trajectory.id,
                "task": trajectory.task.id,
                "turns": len(trajectory.turns),
                "success": trajectory.success,
                "reward": trajectory.rewards.get("outcome"),
                "rewritten_prompts": trajectory.info.get("rewritten_prompts", 0),
            }
        )

    async def models(self, request: Request) -> Response:
        name = request.path_params.get("model")
        if name not in (None, self.model):
            words = f"there is no model {name:.100}; this server has {self.model}"
            raise RefusedError(404, words, code="model_not_found")
        return json_answer(models_json([self.model]) if name is None else model_json(self.model))

    async def health(self, _: Request) -> Response:
        recorder = self.recorder
        return json_answer({"status": "ok", "open_sessions": recorder.open_sessions, "in_flight": recorder.in_flight})

    async def _events(
        self, asked: ChatRequest, live: LiveText, replies: asyncio.Future[Replies]
    ) -> AsyncIterator[bytes]:
        stream = EventStream(_new_id(), self.model, asked)
        try:
            while not replies.done():
                try:
                    await asyncio.wait_for(live.changed(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield WAITING
                for choice, text in live.take():
                    yield stream.text(choice, text)
            for one in stream.rest(self._completion(asked, replies.result())):
                yield one
        except Exception as error:
            yield event(refusal_of(error).to_json())

    def _completion(self, asked: ChatRequest, replies: Replies) -> Completion:
        texts = self.token_texts if asked.logprobs else None
        choices = [
            Choice(
                answer,
                shown,
                texts(answer.call.completion_ids) if texts and answer.call else None,
                _stop_text(asked, answer.message),
            )
            for answer, shown in replies
        ]
        return Completion(_new_id(), self.model, asked, choices)


class EventResponse(StreamingResponse):
    """Events, and the `work` that they tell of, which ends with the response: also if no event was ever asked for."""

    def __init__(self, events: AsyncIterator[bytes], work: asyncio.Future[Any]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._work.cancel()


def _new_id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def _stop_text(request: ChatRequest, reply: Message) -> str | None:
    return next((text for text in request.sampling.get("stop", []) if text in reply.content), None)


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler with every error as an answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientGoneError:
            return Response(status_code=GONE)
        except Exception as error:
            return refused(refusal_of(error))

    return answer


async def _unknown_address(request: Request, _: Exception) -> Response:
    words = f"there is nothing at {request.url.path:.200}; chat completions are at /v1/chat/completions"
    return refused(RefusedError(404, words, code="unknown_address"))


async def _wrong_method(request: Request, _: Exception) -> Response:
    return refused(RefusedError(405, f"{request.method} is not possible here", code="method"))
