"""A chat completion request: what a client asked for, checked.

What cannot be done is refused by name instead of being ignored. Settings that change nothing
about the reply (`user`, `metadata`, `store` and others) are not read.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic_core import from_json, to_json

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError, first_mark
from bough.config.groups import SamplingConfig
from bough.data.messages import read_message, read_tools
from bough.engines.base import Answer, ContextFullError
from bough.errors import BoughError, InputError, RowError, short_repr
from bough.files import json_digest, text_digest
from bough.types import Message, ToolCall

# Choices of one request.
MAX_CHOICES = 32
# Limits on what one request may cost everyone else: all requests share an event loop and the engine's batches.
MAX_MESSAGES = 1 << 14
MAX_TOOLS = 1 << 10
# JSON values in a body, and in the texts of it that are JSON themselves.
MAX_VALUES = 1 << 18
MAX_STOPS, MAX_STOP = 64, 1000
MAX_TEMPERATURE = 100.0
# Below this, dividing by the temperature overflows float32; the most likely token is drawn.
MIN_TEMPERATURE = 1e-4
LARGEST_WHOLE = (1 << 31) - 1
# Records wrap tool calls in further levels and must be readable: JSON is read to a depth of 200.
MAX_DEPTH = 100
# Seeds are taken modulo this: every engine accepts them then.
SEEDS = 1 << 56
# What changes replies and no engine here can do, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


@dataclass(frozen=True)
class ChatRequest:
    """One request. `sampling` has the parameters that were given, by the names of `SamplingConfig`.

    `token_ids` and `keeps_stop` are extensions that vLLM has too: exact tokens in the answer,
    and the stop text at its end.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    num_choices: int = 1
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    keeps_stop: bool = False

    @cached_property
    def keys(self) -> list[tuple[str, str]]:
        """`reply_key` and `exact_key` of each message."""
        return [(reply_key(message), exact_key(message)) for message in self.messages]

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]

    def hidden_stop(self, sampling: SamplingConfig) -> list[str]:
        """The stop texts that the client does not see: its own and those of `sampling`."""
        return [] if self.keeps_stop else [text for text in sampling.stop if text]

    def sampled(self, defaults: SamplingConfig, *, fixed: bool) -> SamplingConfig:
        """The sampling parameters of the reply: the request's, then `defaults`.

        With `fixed`, how tokens are drawn is not the client's to say: only a shorter
        reply and more stop texts are.
        """
        given = dict(self.sampling)
        if fixed:
            longest = min(given.get("max_new_tokens", defaults.max_new_tokens), defaults.max_new_tokens)
            given = {"max_new_tokens": longest, "stop": [*defaults.stop, *given.get("stop", [])]}
        return defaults.model_copy(update=given)


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises RefusedError with a sentence about the first problem."""
    row = read_object(body)
    if sum(map(_num_values, _json_texts(row))) > MAX_VALUES:
        raise _too_many_values()
    for name, harmless in UNSUPPORTED.items():
        if row.get(name) is not None and row[name] not in harmless:
            raise RefusedError(400, f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    options = row.get("stream_options")
    return ChatRequest(
        messages=_messages(row),
        tools=_tools(row),
        sampling=_sampling(row),
        seed=None if (seed := _number(row, "seed", int)) is None else int(seed) % SEEDS,
        num_choices=int(_number(row, "n", int, 1, MAX_CHOICES) or 1),
        stream=_flag(row, "stream"),
        stream_usage=_flag(options, "include_usage") if isinstance(options, dict) else False,
        logprobs=_flag(row, "logprobs"),
        token_ids=_flag(row, "return_token_ids"),
        keeps_stop=_flag(row, "include_stop_str_in_output"),
    )


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    if _num_values(body) > MAX_VALUES:
        raise _too_many_values()
    try:
        row = from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RefusedError(400, "the body is JSON but not an object")
    return row


def _num_values(text: bytes) -> int:
    """About how many values a JSON text has, more than `MAX_VALUES` if there are more.

    Counted before they are read: the parser keeps every other thread waiting until it has made them all.
    """
    marks = (b",", b"[", b"{")
    if (most := sum(map(text.count, marks))) <= MAX_VALUES:
        return most
    # Only what stands outside of texts counts.
    text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if (num_texts := text.count(b'"') // 2) > 2 * MAX_VALUES:  # as keys and as values
        return num_texts
    outside = b" ".join(text.split(b'"')[::2])
    return sum(map(outside.count, marks))


def _json_texts(row: dict[str, Any]) -> Iterator[bytes]:
    """The texts of a request that are read as JSON: tools, and the arguments of tool calls."""
    texts = [row.get("tools")]
    messages = row.get("messages")
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = (call.get("function") or call) if isinstance(call, dict) else None
            texts.append(function.get("arguments") if isinstance(function, dict) else None)
    return (text.encode(errors="replace") for text in texts if isinstance(text, str))


def _too_many_values() -> RefusedError:
    return RefusedError(413, f"the request has more than {MAX_VALUES:,} JSON values", code="too_large")


def _messages(row: dict[str, Any]) -> list[Message]:
    given = row.get("messages")
    if not isinstance(given, list) or not given:
        raise RefusedError(400, "messages must be a list with at least one message", param="messages")
    if len(given) > MAX_MESSAGES:
        raise RefusedError(400, f"messages has {len(given):,}; at most {MAX_MESSAGES:,} are read", param="messages")
    try:
        messages = [read_message(one, f"messages[{number}]") for number, one in enumerate(given)]
    except (RowError, ValueError) as error:
        raise RefusedError(400, str(error), param="messages") from None
    if (num_calls := sum(len(message.tool_calls) for message in messages)) > MAX_MESSAGES:
        words = f"messages have {num_calls:,} tool calls; at most {MAX_MESSAGES:,} are read"
        raise RefusedError(400, words, param="messages")
    if any(_too_deep(call.arguments) for message in messages for call in message.tool_calls):
        raise RefusedError(400, f"a tool call is nested deeper than {MAX_DEPTH} levels", param="messages")
    return messages


def _tools(row: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        tools = read_tools({"tools": row.get("tools")})
    except (RowError, ValueError) as error:
        raise RefusedError(400, str(error), param="tools") from None
    if len(tools) > MAX_TOOLS:
        raise RefusedError(400, f"tools has {len(tools):,}; at most {MAX_TOOLS:,} are read", param="tools")
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RefusedError(400, f"tools[{number}] has no function with a name", param="tools")
        if _too_deep(tool):
            raise RefusedError(400, f"tools[{number}] is nested deeper than {MAX_DEPTH} levels", param="tools")
    choice = row.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RefusedError(
            400, 'tool_choice must be "auto" or "none": this server cannot force a tool call', param="tool_choice"
        )
    return [] if choice == "none" else tools


def _sampling(row: dict[str, Any]) -> dict[str, Any]:
    longest = _number(row, "max_completion_tokens", int, 1, LARGEST_WHOLE)
    stop = row.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise RefusedError(400, "stop must be text or a list of texts", param="stop")
    if len(stops) > MAX_STOPS or any(len(text) > MAX_STOP for text in stops):
        limits = f"at most {MAX_STOPS} texts of at most {MAX_STOP:,} characters"
        raise RefusedError(400, f"stop must be {limits}", param="stop")
    given = {
        "temperature": _number(row, "temperature", float, 0, MAX_TEMPERATURE),
        "top_p": _number(row, "top_p", float, 0, 1),
        "top_k": _number(row, "top_k", int, -LARGEST_WHOLE, LARGEST_WHOLE),
        "min_p": _number(row, "min_p", float, 0, 1),
        "max_new_tokens": _number(row, "max_tokens", int, 1, LARGEST_WHOLE) if longest is None else longest,
        "stop": [text for text in stops if text] or None,
    }
    if given["top_p"] == 0:
        given["top_p"] = None  # asks for the most likely token, as does temperature 0
        given["temperature"] = 0.0
    if given["temperature"] is not None and given["temperature"] < MIN_TEMPERATURE:
        given["temperature"] = 0.0
    if given["top_k"] is not None and given["top_k"] < 0:
        given["top_k"] = 0
    return {name: value for name, value in given.items() if value is not None}


def _number(
    row: dict[str, Any], name: str, kind: type[int] | type[float], low: float = -math.inf, high: float = math.inf
) -> Any:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise RefusedError(400, f"{name} must be a {'whole ' if kind is int else ''}number", param=name)
    if not low <= value <= high:
        limits = f"at least {low:.10g}" if high == math.inf else f"from {low:.10g} to {high:.10g}"
        raise RefusedError(400, f"{name} is {short_repr(value)}; it must be {limits}", param=name)
    return kind(value)


def _too_deep(value: Any, depth: int = MAX_DEPTH) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_too_deep(one, depth - 1) for one in inside)


def _flag(row: dict[str, Any], name: str) -> bool:
    value = row.get(name)
    if value not in (None, True, False):
        raise RefusedError(400, f"{name} must be true or false", param=name)
    return bool(value)


# Chat completions as JSON.

Json = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One reply: what the engine answered, what the client sees of it, its tokens' texts and its stop text."""

    answer: Answer
    shown: Message
    token_texts: list[str] | None = None
    stop_text: str | None = None


@dataclass(frozen=True)
class Completion:
    """The reply to a request."""

    id: str
    model: str
    request: ChatRequest
    choices: list[Choice]

    def to_json(self) -> Json:
        choices = []
        for index, choice in enumerate(self.choices):
            message: Json = {"role": "assistant", "content": choice.shown.content or None, "refusal": None}
            if not choice.shown.tool_calls:
                message["content"] = choice.shown.content
            if choice.shown.reasoning is not None:
                message["reasoning_content"] = choice.shown.reasoning
            if calls := tool_calls_json(choice.shown):
                message["tool_calls"] = calls
            written = {"index": index, "message": message, "finish_reason": finish_reason(choice)}
            choices.append({**written, "logprobs": self.logprobs(choice), **self._token_ids(choice)})
        whole = {**self._head(), "choices": choices, "usage": self.usage()}
        if self.request.token_ids and (call := self.choices[0].answer.call) is not None:
            whole["prompt_token_ids"] = call.prompt_ids
        return whole

    def _head(self) -> Json:
        return {"id": self.id, "object": "chat.completion", "created": int(time.time()), "model": self.model}

    def usage(self) -> Json:
        prompt = self.choices[0].answer.num_prompt_tokens
        completion = sum(choice.answer.num_completion_tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _token_ids(self, choice: Choice) -> Json:
        """What vLLM gives besides: the exact tokens, and the stop text if one ended the reply."""
        call = choice.answer.call
        if not self.request.token_ids or call is None:
            return {}
        return {"token_ids": call.completion_ids, "stop_reason": choice.stop_text}

    def logprobs(self, choice: Choice) -> Json | None:
        """Each token with its log-probability; None where they were not asked for or the engine has none."""
        call = choice.answer.call
        if not self.request.logprobs or call is None or call.logprobs is None:
            return None
        texts = choice.token_texts or [f"token_id:{token}" for token in call.completion_ids]
        return {
            "content": [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, call.logprobs, strict=True)
            ],
            "refusal": None,
        }


def models_json(names: list[str]) -> Json:
    """The answer of /v1/models."""
    return {"object": "list", "data": [model_json(name) for name in names]}


def model_json(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "bough"}


def tool_calls_json(message: Message) -> list[Json]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in message.tool_calls
    ]


def finish_reason(choice: Choice) -> str:
    if choice.shown.tool_calls:
        return "tool_calls"
    return "length" if choice.answer.finish == "length" else "stop"


# A chat completion as server-sent events: text while it is sampled, the rest when it is complete.


class EventStream:
    """The events of one request."""

    def __init__(self, id: str, model: str, request: ChatRequest) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._usage = {"usage": None} if request.stream_usage else {}
        self._num_sent = [0] * request.num_choices
        self._begun: set[int] = set()

    def text(self, index: int, text: str) -> bytes:
        """New content of a choice, with its role if it is the first."""
        self._num_sent[index] += len(text)
        return self._begin(index) + self._chunk(index, {"content": text})

    def rest(self, completion: Completion) -> Iterator[bytes]:
        """What was not sent: for each choice its role, the rest of its content, its tool calls and its end."""
        for index, choice in enumerate(completion.choices):
            if begin := self._begin(index):
                yield begin
            logprobs = completion.logprobs(choice)
            if choice.shown.reasoning is not None:
                yield self._chunk(index, {"reasoning_content": choice.shown.reasoning})
            content = choice.shown.content[self._num_sent[index] :]
            if content or logprobs:
                yield self._chunk(index, {"content": content}, logprobs=logprobs)
            if calls := tool_calls_json(choice.shown):
                yield self._chunk(index, {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
            yield self._chunk(index, {}, finish=finish_reason(choice))
        if self._usage:
            yield event({**self._head, "choices": [], "usage": completion.usage()})
        yield b"data: [DONE]\n\n"

    def _begin(self, index: int) -> bytes:
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: Json, *, finish: str | None = None, logprobs: Json | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "choices": [choice], **self._usage})


def event(value: Json) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


# A model's reply as the client sees it, and how it is recognised when the client sends it back.
# A model writes tool calls as text. The client gets them as data, without their tags, and cut at its stop text; sent
# back in the next request, such a message is found again at its place in the conversation (`extended`) and takes the
# form in which the model wrote it, so that the prompt continues with the same tokens.

CALL = re.compile(re.escape(tool_calls.OPEN) + ".*?" + re.escape(tool_calls.CLOSE), re.DOTALL)


def without_stop(reply: Message, stop: Sequence[str]) -> Message:
    """The reply up to the first stop text in it."""
    ends = [at for text in stop if (at := reply.content.find(text)) >= 0]
    return reply.model_copy(update={"content": reply.content[: min(ends)]}) if ends else reply


def shown_reply(reply: Message, *, name: str, tool_names: Collection[str]) -> Message:
    """The reply with its tool calls as data. A call that cannot be read stays text; `name` makes the ids unique."""
    content, calls = (reply.content, list(reply.tool_calls)) if reply.tool_calls else _split(reply.content, tool_names)
    numbered = [call.model_copy(update={"id": call.id or f"call_{name}_{i}"}) for i, call in enumerate(calls)]
    return reply.model_copy(update={"content": content, "tool_calls": numbered})


def reply_key(message: Message) -> str:
    """A digest of what a message says: clients drop or change ids, names and white space at the ends."""
    calls = [[call.name, sorted(call.arguments.items())] for call in message.tool_calls]
    return json_digest([message.role, message.content.strip(), calls], size=16)


def exact_key(message: Message) -> str:
    """A digest of a message as it was sent, with the ids of its calls."""
    calls = [[call.id, call.name, sorted(call.arguments.items())] for call in message.tool_calls]
    return json_digest([message.role, message.content, calls], size=16)


def extended(conversation: str, key: str) -> str:
    """The digest of a conversation, given by its own digest, with one more message, given by its key."""
    return text_digest(f"{conversation} {key}", size=16)


def is_malformed(reply: Message, shown: Message) -> bool:
    """Whether the model wrote calls that were understood, but not in the form that it was told to use."""
    return bool(shown.tool_calls) and not reply.tool_calls and not tool_calls.parse(reply.content).calls


def _split(text: str, tool_names: Collection[str]) -> tuple[str, list[ToolCall]]:
    try:
        calls = tool_calls.parse(text).calls
    except MalformedError:
        return text, []
    if not calls:
        content, understood = tool_calls.split(text, tool_names)
        return content, list(understood)
    thinking, ended, spoken = text.rpartition("</think>")
    return (thinking + ended + CALL.sub("", spoken)).rstrip(), list(calls)


# What of a reply can be shown while it is sampled: no stop text, no tool call, nothing that may become one.


class ShownText:
    """Passes the text of one reply on to `on_text` as far as it is certain. `tool_names` are the tools it may call.

    All that is passed on is a beginning of the content that the client would get if it did not stream.
    """

    def __init__(self, stop: Sequence[str], tool_names: Collection[str], on_text: Callable[[str], None]) -> None:
        self._stop, self._on_text = list(stop), on_text
        self._marks = [*stop, tool_calls.OPEN] if tool_names else self._stop
        self._undecided = tool_calls.Undecided(tool_names) if tool_names else None
        self._text = ""
        self._num_shown = 0
        self._ended = False

    def add(self, text: str) -> None:
        if self._ended:
            return
        self._text += text
        if stops := [at for stop in self._stop if (at := self._text.find(stop, self._num_shown)) >= 0]:
            # The rest of a token is no part of the reply and says nothing about it.
            self._text, self._ended = self._text[: min(stops)], True
        end = first_mark(self._text, self._marks, self._num_shown)
        if self._undecided is not None:
            end = max(self._num_shown, min(end, self._undecided.first(self._text, self._num_shown)))
            # White space before a tool call is not part of the content.
            end = self._num_shown + len(self._text[self._num_shown : end].rstrip())
        if shown := self._text[self._num_shown : end]:
            self._on_text(shown)
        self._num_shown = end


# A request that is not answered: its HTTP status, and the error body that OpenAI's clients read.

# The error types of OpenAI's API by status; all others are server errors.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
}


class RefusedError(BoughError):
    """The message is a sentence for the client; `code` is a fixed word for programs."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def to_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def refusal_of(error: Exception) -> RefusedError:
    """How a failure in answering is told to the client: its own mistakes are 400, the engine's failures 502."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, ContextFullError):
        return RefusedError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, InputError | RowError):
        return RefusedError(400, str(error))
    if isinstance(error, BoughError):
        return RefusedError(502, str(error), code="engine_error")
    return RefusedError(500, f"the request failed: {type(error).__name__}: {error}"[:500], code="internal_error")
