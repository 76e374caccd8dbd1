"""Chat completions as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from bough.engines.base import Answer
from bough.serving.request import ChatRequest
from bough.types import Message

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
