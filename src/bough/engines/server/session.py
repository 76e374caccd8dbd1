"""One client's use of the endpoint: every call with its exact tokens, and which call it continues.

Requests may come in any order and at the same time. A request continues the call whose
conversation it repeats, and adds messages to it: replies are recognised by what they say, all
other messages to the letter. It then uses that call's chat, if no other request does, so that
what the engine computed is kept and the prompt has the very tokens that were sampled. Any other
request (a sub-agent, a rewritten history, a second way on from the same point) starts a branch,
with a chat of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bough import event_loop
from bough.config.groups import SamplingConfig
from bough.engines.base import Answer, ContextFullError, EngineError, ModelChat
from bough.engines.server.chat import (
    ChatRequest,
    RefusedError,
    exact_key,
    extended,
    is_malformed,
    reply_key,
    shown_reply,
    without_stop,
)
from bough.errors import InputError, RowError
from bough.files import derived_seed, json_digest, text_digest
from bough.ledger import plural
from bough.types import Call, Message

# Chats that are kept for later requests: each may hold memory of the engine.
MAX_IDLE_CHATS = 8
# Fewer than a server answers at a time: one session does not keep the others out.
MAX_IN_FLIGHT = 256


@dataclass(frozen=True)
class SessionConfig:
    """How a session's requests are answered.

    `open_chat` begins a chat by its number. With `fixed_sampling`, clients do not choose
    how tokens are drawn; `max_calls` is how many requests are answered.
    """

    open_chat: Callable[[int], ModelChat]
    sampling: SamplingConfig
    seed: int = 0
    fixed_sampling: bool = False
    max_calls: int | None = None


@dataclass(frozen=True)
class RecordedCall:
    """One reply. `messages` are those after the reply of `parent`, or all of them where there is no parent.

    `conversation` is the digest of what the messages and the reply say, `exact` that of all of them as
    the client has them, `shown` that of its form of the reply. `error` is that of a `Turn`.
    `rewritten` is set where the prompt does not begin with the tokens of `parent`: the chat template
    shows earlier messages in another way, or a chat that did not sample the reply has encoded its text.
    """

    number: int
    parent: int | None
    messages: list[Message]
    tools: list[dict[str, Any]]
    reply: Message
    call: Call | None
    num_prompt_tokens: int
    num_completion_tokens: int
    conversation: str
    shown: str
    exact: str
    error: str | None = None
    rewritten: bool = False


Keep = Callable[["Session", RecordedCall], Awaitable[None]]


@dataclass
class Session:
    """`failure` is the engine's last error, `refused` why the model could not answer the last request.

    `refused` is the stop reason of an episode that ends for it; `refusal` says in a sentence why the
    last refused request, of whatever kind, was not answered.
    `keep` receives a finished call before its request is answered.
    """

    name: str
    config: SessionConfig
    keep: Keep | None = None
    calls: list[RecordedCall] = field(default_factory=list)
    closed: str | None = None
    failure: EngineError | None = None
    refused: str | None = None
    refusal: str | None = None
    last_used: float = field(default_factory=time.monotonic)
    _by_conversation: dict[str, int] = field(default_factory=dict)
    _by_exact: dict[str, int] = field(default_factory=dict)
    _by_shown: dict[str, int] = field(default_factory=dict)
    _idle: OrderedDict[int, ModelChat] = field(default_factory=OrderedDict)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _num_chats: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    async def answer(self, request: ChatRequest) -> tuple[Answer, Message]:
        """The reply to a request, as the engine gave it and as the client sees it. It is recorded."""
        if self.closed is not None:
            raise self._closed_refusal()
        if self.in_flight >= MAX_IN_FLIGHT:
            raise RefusedError(429, f"session {self.name} has {MAX_IN_FLIGHT} requests in flight; wait", code="busy")
        limit = self.config.max_calls
        if limit is not None and len(self.calls) + self.in_flight >= limit:
            self.refused, self.refusal = "max_turns", f"an episode may have at most {plural(limit, 'reply')}"
            raise RefusedError(400, f"session {self.name} may have at most {plural(limit, 'reply')}", code="max_turns")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._answered(request)
        except ContextFullError as error:
            self.refused, self.refusal = "context_full", str(error)
            raise
        except (InputError, RowError) as error:
            self.refusal = str(error)
            raise
        except EngineError as error:
            self.failure = error
            raise
        except asyncio.CancelledError:
            if self.closed is not None and not task.uncancel():
                raise self._closed_refusal() from None
            raise
        finally:
            self._tasks.discard(task)
            self.last_used = time.monotonic()

    def add(self, call: RecordedCall) -> None:
        """Takes a call up, now or from the journal of an earlier process."""
        assert call.number == len(self.calls)
        self.calls.append(call)
        self._by_conversation[call.conversation] = self._by_exact[call.exact] = call.number
        self._by_shown[call.shown] = call.number

    def close(self, why: str) -> None:
        """Ends the session: requests in flight are cancelled, later ones refused."""
        self.closed = why
        for task in self._tasks - {event_loop.current_task()}:
            task.cancel()
        for chat in self._idle.values():
            chat.close()
        self._idle.clear()

    async def _answered(self, request: ChatRequest) -> tuple[Answer, Message]:
        place = self._place(request)
        # The same seed for the same request in the same session, whatever else is asked in between.
        seed = request.seed
        if seed is None:
            seed = derived_seed(self.config.seed, f"{place.prompt} {self._asked[place.prompt]} 0")
        self._asked[place.prompt] += 1
        sampling = request.sampled(self.config.sampling, fixed=self.config.fixed_sampling)
        chat = None if place.parent is None else self._idle.pop(place.parent, None)
        if chat is None:
            chat = self.config.open_chat(self._num_chats)
            self._num_chats += 1
        try:
            answer = await chat.answer(place.messages, request.tools, sampling=sampling, seed=seed)
            number, parent = len(self.calls), place.parent
            # What is cut off is not part of the conversation that the client continues.
            reply = shown = without_stop(answer.message, request.hidden_stop(sampling))
            if request.tools:
                # Not the session's own name: the ids come back in prompts, and the model must not learn its address.
                unique = f"{text_digest(self.name, size=8)}_{number}"
                shown = shown_reply(reply, name=unique, tool_names=request.tool_names)
            call = RecordedCall(
                number=number,
                parent=parent,
                messages=place.messages if parent is None else place.messages[place.known :],
                tools=request.tools,
                reply=reply,
                call=answer.call,
                num_prompt_tokens=answer.num_prompt_tokens,
                num_completion_tokens=answer.num_completion_tokens,
                conversation=extended(place.prompt, reply_key(shown)),
                exact=extended(place.exact, exact_key(shown)),
                shown=exact_key(shown),
                error="malformed" if is_malformed(reply, shown) else None,
                rewritten=parent is not None and not _continues(self.calls[parent].call, answer.call),
            )
            self.add(call)
            if self.keep is not None:
                await self.keep(self, call)
        except BaseException:
            chat.close()
            raise
        self._idle[call.number] = chat
        while self._idle and (self.closed is not None or len(self._idle) > MAX_IDLE_CHATS):
            self._idle.popitem(last=False)[1].close()
        return answer, shown

    def _place(self, request: ChatRequest) -> _Place:
        """Where in the session's tree a request stands."""
        digest = exact = json_digest(request.tools, size=16)
        messages, last, known = list[Message](), None, 0
        for number, (message, (said, sent)) in enumerate(zip(request.messages, request.keys, strict=True)):
            digest, exact = extended(digest, said), extended(exact, sent)
            if message.role == "assistant":
                # Several calls may have said the same here: a client that sends back what it got means one of them.
                found = self._by_exact.get(exact, self._by_conversation.get(digest))
                last, known = (last, known) if found is None else (found, number + 1)
                if message.tool_calls and (written := self._by_shown.get(exact_key(message))) is not None:
                    # At a place that is not known, as in a rewritten history, the ids of its calls say which it is.
                    message = self.calls[written].reply
            messages.append(message)
        parent = None
        if last is not None:
            kept = [*prompt_of(self.calls, self.calls[last]), self.calls[last].reply]
            pairs = list(zip(request.messages, kept, strict=False))
            messages[:known] = [one if given.role == "assistant" else given for given, one in pairs]
            same = all(given.content == one.content for given, one in pairs if given.role != "assistant")
            # Something was added, and no reply that is not this session's.
            added = [message.role for message in messages[known:]]
            parent = last if same and added and "assistant" not in added else None
        return _Place(messages, digest, exact, parent, known)

    def _closed_refusal(self) -> RefusedError:
        words = f"session {self.name} is closed ({self.closed}); use another session name"
        return RefusedError(409, words, code="session_closed")


@dataclass(frozen=True)
class _Place:
    """A request's messages as the model wrote its part of them, their digests, the call they continue and its length.

    `prompt` and `exact` are digests as `conversation` and `exact` of a call.
    """

    messages: list[Message]
    prompt: str
    exact: str
    parent: int | None
    known: int


def prompt_of(calls: list[RecordedCall], call: RecordedCall) -> list[Message]:
    """All messages that a call answered."""
    parts = [call.messages]
    while call.parent is not None:
        call = calls[call.parent]
        parts.append([*call.messages, call.reply])
    return [message for part in reversed(parts) for message in part]


def _continues(before: Call | None, after: Call | None) -> bool:
    """Whether a prompt begins with the tokens of the call before it. Without tokens it cannot be told."""
    if before is None or after is None:
        return True
    known = before.prompt_ids + before.completion_ids
    return after.prompt_ids[: len(known)] == known
