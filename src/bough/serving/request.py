"""A chat completion request: what a client asked for, checked.

What cannot be done is refused by name instead of being ignored. Settings that change nothing
about the reply (`user`, `metadata`, `store` and others) are not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from bough.config.sampling import SamplingConfig
from bough.errors import RowError, short_repr
from bough.formats.messages import read_message, read_tools
from bough.serving.refusal import RefusedError
from bough.types import Message

# Choices of one request.
MAX_CHOICES = 32
# Limits on what one request may cost everyone else: all requests share an event loop and the engine's batches.
MAX_MESSAGES = 1 << 14
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
    try:
        row = from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RefusedError(400, "the body is JSON but not an object")
    return row


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
    if any(_too_deep(call.arguments) for message in messages for call in message.tool_calls):
        raise RefusedError(400, f"a tool call is nested deeper than {MAX_DEPTH} levels", param="messages")
    return messages


def _tools(row: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        tools = read_tools({"tools": row.get("tools")})
    except (RowError, ValueError) as error:
        raise RefusedError(400, str(error), param="tools") from None
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
