"""A chat completion as server-sent events: text while it is sampled, the rest when it is complete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from bough.serving.request import ChatRequest
from bough.serving.response import Completion, finish_reason, tool_calls_json

Json = dict[str, Any]


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
