"""A chat completion request: what a client asked for, checked.

What cannot be done is refused by name instead of being ignored. Settings that change nothing
about the reply (`user`, `metadata`, `store` and others) are not read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError
from bough.config.groups import SamplingConfig
from bough.data.base import read_message, read_tools
from bough.engines.base import Answer, ContextFullError
from bough.errors import BoughError, InputError, RowError, short_repr
from bough.files import json_digest, text_digest
from bough.types import Message, ToolCall

Model = TypeVar("Model", bound=BaseModel)
# Limits on what one request may cost everyone else: all requests share an event loop and the engine's batches.
MAX_MESSAGES = 1 << 14
MAX_TOOLS, MAX_TOOL_CALLS = 1 << 10, 1 << 14
# JSON values, in the body and in those of its texts that are JSON themselves.
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
    "response_format": ({"type": "text"},), "modalities": (["text"],), "function_call": ("none", "auto"),
    "functions": (), "frequency_penalty": (), "presence_penalty": (), "logit_bias": (), "top_logprobs": (),
    "audio": (), "prediction": (), "web_search_options": (),
}  # fmt: skip
# What a field may be, where pydantic's words would not tell a client.
ALLOWED = {
    "stop": f"it may be a text of up to {MAX_STOP} characters, or a list of up to {MAX_STOPS} of them",
    "task": 'it may be a name, or an object with an "id"',
    "tool_choice": 'it may be "auto" or "none": this server cannot force a tool call',
}
NumTokens = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]
StopText = Annotated[str, Field(max_length=MAX_STOP)]


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


class StreamOptions(BaseModel):
    include_usage: bool = False


class RequestBody(BaseModel):
    """The fields of a request that are read, and what each may be."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: Any = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    seed: int | None = None
    n: int | None = Field(None, ge=1, le=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None

    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that were given, by the names of `SamplingConfig`."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        greedy = self.top_p == 0 or (self.temperature is not None and self.temperature < MIN_TEMPERATURE)
        given = {
            "temperature": 0.0 if greedy else self.temperature,
            "top_p": self.top_p or None,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "max_new_tokens": self.max_completion_tokens or self.max_tokens,
            "stop": [text for text in stops if text] or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises RefusedError with a sentence about the first problem."""
    row = read_object(body)
    for name, harmless in UNSUPPORTED.items():
        if row.get(name) and row[name] not in harmless:
            raise RefusedError(400, f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    given = validated(RequestBody, row)
    request = ChatRequest(
        messages=_messages(given.messages),
        tools=[] if given.tool_choice == "none" else _tools(given.tools),
        sampling=given.sampling(),
        seed=None if given.seed is None else given.seed % SEEDS,
        stream=bool(given.stream),
        stream_usage=given.stream_options is not None and given.stream_options.include_usage,
        logprobs=bool(given.logprobs),
        token_ids=bool(given.return_token_ids),
        keeps_stop=bool(given.include_stop_str_in_output),
    )
    assert len(request.keys) == len(request.messages)  # made here, where a large request holds up no other
    return request


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    too_many = RefusedError(413, f"the request has more than {MAX_VALUES:,} JSON values", code="too_large")
    if _num_values(body) > MAX_VALUES:
        raise too_many
    try:
        row = from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RefusedError(400, "the body is JSON but not an object")
    if sum(map(_num_values, _json_texts(row))) > MAX_VALUES:
        raise too_many
    return row


def _num_values(text: bytes) -> int:
    """About how many values a JSON text has: commas and brackets outside of its texts.

    Counted before they are read: the parser keeps every other thread waiting until it has made them all.
    """
    outside = b" ".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 4 * MAX_VALUES)[::2])
    return sum(map(outside.count, (b",", b"[", b"{")))


def _json_texts(value: Any, name: str = "") -> Iterator[bytes]:
    """The texts of a request that are read as JSON: tools, and the arguments of tool calls."""
    if isinstance(value, str) and name in ("tools", "arguments"):
        yield value.encode()
    for key, one in value.items() if isinstance(value, dict) else ():
        yield from _json_texts(one, key)
    for one in value if isinstance(value, list) else ():
        yield from _json_texts(one, name)


def validated(model: type[Model], row: dict[str, Any]) -> Model:
    """The row as a model. Raises RefusedError with a sentence about the first problem."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        words = f"{name} is missing"
        if name in row:
            words = f"{name} is {short_repr(row[name])}: {ALLOWED.get(name, first['msg'])}"
        raise RefusedError(400, words, param=name) from None


def _messages(given: list[Any]) -> list[Message]:
    try:
        messages = [read_message(one, f"messages[{number}]") for number, one in enumerate(given)]
    except (RowError, ValueError) as error:
        raise RefusedError(400, str(error), param="messages") from None
    calls = [call for message in messages for call in message.tool_calls]
    if len(calls) > MAX_TOOL_CALLS:
        words = f"there are {len(calls):,} tool calls; at most {MAX_TOOL_CALLS:,} are read"
        raise RefusedError(400, words, param="messages")
    if any(_too_deep(call.arguments) for call in calls):
        raise RefusedError(400, f"a tool call is nested deeper than {MAX_DEPTH} levels", param="messages")
    return messages


def _tools(given: Any) -> list[dict[str, Any]]:
    try:
        tools = read_tools({"tools": given})
    except (RowError, ValueError) as error:
        raise RefusedError(400, str(error), param="tools") from None
    if len(tools) > MAX_TOOLS:
        raise RefusedError(400, f"there are {len(tools):,} tools; at most {MAX_TOOLS:,} are read", param="tools")
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RefusedError(400, f"tools[{number}] has no function with a name", param="tools")
        if _too_deep(tool):
            raise RefusedError(400, f"tools[{number}] is nested deeper than {MAX_DEPTH} levels", param="tools")
    return tools


def _too_deep(value: Any, depth: int = MAX_DEPTH) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_too_deep(one, depth - 1) for one in inside)


# Chat completions as JSON, and as server-sent events.

Json = dict[str, Any]


@dataclass(frozen=True)
class Completion:
    """The reply to a request: what the engine answered, what the client sees of it, and its tokens' texts."""

    id: str
    model: str
    request: ChatRequest
    answer: Answer
    shown: Message
    token_texts: list[str] | None = None

    def to_json(self) -> Json:
        shown, call = self.shown, self.answer.call
        content = shown.content or None if shown.tool_calls else shown.content
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if shown.reasoning is not None:
            message["reasoning_content"] = shown.reasoning
        if shown.tool_calls:
            message["tool_calls"] = self._tool_calls()
        choice = {"index": 0, "message": message, "finish_reason": self._finish(), "logprobs": self._logprobs()}
        whole = {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}
        if self.request.token_ids and call is not None:  # what vLLM gives besides
            stops = self.request.sampling.get("stop", [])
            stop = next((text for text in stops if text in self.answer.message.content), None)
            choice |= {"token_ids": call.completion_ids, "stop_reason": stop}
            whole["prompt_token_ids"] = call.prompt_ids
        return whole

    def events(self) -> Iterator[bytes]:
        """Its role, its content, its tool calls and its end; then the usage, if it was asked for."""
        head = self._head("chat.completion.chunk")
        no_usage = {"usage": None} if self.request.stream_usage else {}

        def chunk(delta: Json, finish: str | None = None, logprobs: Json | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            return _event({**head, "choices": [choice], **no_usage})

        yield chunk({"role": "assistant", "content": ""})
        if self.shown.reasoning is not None:
            yield chunk({"reasoning_content": self.shown.reasoning})
        logprobs = self._logprobs()
        if self.shown.content or logprobs:
            yield chunk({"content": self.shown.content}, logprobs=logprobs)
        if self.shown.tool_calls:
            yield chunk({"tool_calls": [{"index": i, **call} for i, call in enumerate(self._tool_calls())]})
        yield chunk({}, self._finish())
        if self.request.stream_usage:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}

    def _finish(self) -> str:
        if self.shown.tool_calls:
            return "tool_calls"
        return "length" if self.answer.finish == "length" else "stop"

    def _tool_calls(self) -> list[Json]:
        return [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in self.shown.tool_calls
        ]

    def _usage(self) -> Json:
        prompt, completion = self.answer.num_prompt_tokens, self.answer.num_completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _logprobs(self) -> Json | None:
        """Each token with its log-probability; None where they were not asked for or the engine has none."""
        call = self.answer.call
        if not self.request.logprobs or call is None or call.logprobs is None:
            return None
        texts = self.token_texts or [f"token_id:{token}" for token in call.completion_ids]
        return {
            "content": [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, call.logprobs, strict=True)
            ],
            "refusal": None,
        }


def _event(value: Json) -> bytes:
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


# A request that is not answered: its HTTP status, and the error body that OpenAI's clients read.

# The error types of OpenAI's API by status; others below 500 are invalid requests.
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


class RefusedError(BoughError):
    """The message is a sentence for the client; `code` is a fixed word for programs."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def to_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
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
