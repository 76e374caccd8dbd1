"""Conversations as OpenAI-compatible servers read and write them: JSON on the wire, `Message` and `Call` here."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic_core import to_json

from bough.calls import fallback
from bough.calls.template import ChatTemplate, with_hint
from bough.engines.base import Answer, EngineError
from bough.speech import hermes
from bough.types import Call, Finish, Message, ToolCall

Json = dict[str, Any]
MAX_ID = 1 << 31
# A log-probability of almost 0 may come out above it.
ROUNDING = 1e-3
THINKING = ("reasoning_content", "reasoning")


class LogprobError(EngineError):
    """A number is given as a log-probability and cannot be one."""


def conversation(
    messages: list[Message], tools: list[Json], template: ChatTemplate | None
) -> tuple[list[Json], list[Json]]:
    """What is sent of a conversation and its tools.

    A server drops what its template has no place for without a word. Where the template is
    known, tools and system messages are said in the way it can express instead.
    """
    messages = with_hint(messages)
    if template is not None:
        if not template.knows_tools:
            messages, tools = fallback.without_tools(messages, tools), []
        if not template.knows_system:
            messages = fallback.without_system(messages)
    return _written(messages), tools


def _written(messages: list[Message]) -> list[Json]:
    """Messages as JSON. Calls and results that have no id get one: servers match them by it."""
    written, waiting = [], []  # type: list[Json], list[str]
    for number, message in enumerate(messages):
        spoken: Json = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            spoken |= dict.fromkeys(THINKING, message.reasoning)
        if message.tool_calls:
            ids = [call.id or f"call_{number}_{i}" for i, call in enumerate(message.tool_calls)]
            spoken["tool_calls"] = [_call(call, id) for call, id in zip(message.tool_calls, ids, strict=True)]
            waiting = ids
        if message.role == "tool":
            id = message.tool_call_id or (waiting[0] if waiting else f"call_{number}")
            waiting = [other for other in waiting if other != id]
            spoken["tool_call_id"] = id
        if message.name is not None:
            spoken["name"] = message.name
        written.append(spoken)
    return written


def _call(call: ToolCall, id: str) -> Json:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def read_answer(response: Any, *, template: ChatTemplate | None, where: str) -> Answer:
    """The first choice of a chat completion. `call` is None unless both prompt and answer came as token ids.

    An answer that cannot be used, in whatever way, is an EngineError.
    """
    try:
        answer = _read_answer(response, template, where)
        to_json([answer.message, answer.call])  # half a surrogate pair is text to Python, but to no file
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{where} gave an answer that cannot be used: {error!s:.200}") from None
    return answer


def _read_answer(response: Any, template: ChatTemplate | None, where: str) -> Answer:
    choice = read_choice(response, where)
    said = choice.get("message")
    if not isinstance(said, dict):
        raise EngineError(f"{where} answered without a message: {json.dumps(response)[:200]}")
    finish = _finish(choice.get("finish_reason"))
    call = _read_call(response, choice, said, finish, template)
    ended_with = _ending(choice, said, finish)
    content, calls = _read_tool_calls(_text(said).removesuffix(ended_with), said.get("tool_calls"))
    reasoning = next((said[key] for key in THINKING if isinstance(said.get(key), str)), None)
    message = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    num_prompt = len(call.prompt_ids) if call else _count(response, "prompt_tokens")
    num_completion = len(call.completion_ids) if call else _count(response, "completion_tokens")
    return Answer(message, call, finish, num_prompt, num_completion)


def read_tokens(response: Any, choice: Json) -> tuple[list[int], list[int], list[float] | None] | None:
    """Prompt, answer and log-probabilities, if the server gives the tokens; None for what it does not give.

    What it gives and cannot be right is an EngineError: nothing should be trained on it.
    """
    prompt = _ids(response.get("prompt_token_ids") or choice.get("prompt_token_ids"))
    ids = _ids(choice.get("token_ids"))
    if prompt is None or ids is None:
        return None
    logprobs = _logprobs(choice.get("logprobs"))
    if logprobs is not None and len(logprobs) != len(ids):
        raise EngineError(f"the server gave {len(logprobs)} log-probabilities for {len(ids)} tokens")
    return prompt, ids, logprobs


def read_choice(response: Any, where: str) -> Json:
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EngineError(f"{where} answered without choices: {json.dumps(response)[:200]}")
    first: Json = choices[0]
    return first


def _read_call(response: Json, choice: Json, said: Json, finish: Finish, template: ChatTemplate | None) -> Call | None:
    tokens = read_tokens(response, choice)
    if tokens is None:
        return None
    prompt, ids, logprobs = tokens
    if template is not None:
        text = template.tokenizer.decode(template.without_end(ids))
    elif said.get("tool_calls") or any(said.get(key) for key in THINKING):
        # The server took the text apart; its tokens still spell the whole of it.
        ended = finish == "stop" and not isinstance(choice.get("stop_reason"), str)
        spelled = [str(entry.get("token", "")) for entry in _entries(choice.get("logprobs"))]
        text = "".join(spelled[:-1] if ended else spelled)
    else:
        text = _text(said).removesuffix(_ending(choice, said, finish))
    policy = response.get("model")
    return Call(
        prompt_ids=prompt,
        completion_ids=ids,
        logprobs=logprobs,
        text=text,
        finish=finish,
        policy=policy if isinstance(policy, str) else None,
    )


def _ending(choice: Json, said: Json, finish: Finish) -> str:
    """The end-of-turn token's text, where the server left it in the content (it does if stop texts are kept)."""
    tokens = _entries(choice.get("logprobs"))
    if finish != "stop" or isinstance(choice.get("stop_reason"), str) or not tokens:
        return ""
    last = tokens[-1].get("token")
    return last if isinstance(last, str) and last.startswith("<") and _text(said).endswith(last) else ""


def _text(said: Json) -> str:
    content = said.get("content")
    if isinstance(content, list):  # parts; only text is read
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _read_tool_calls(content: str, calls: Any) -> tuple[str, list[ToolCall]]:
    """Tool calls; one whose arguments cannot be used stays text, for the environment to complain about.

    The model wrote the arguments: that they are nested too deeply, or not JSON, is not the server's fault.
    """
    read, broken = [], []  # type: list[ToolCall], list[str]
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        name, arguments = str(function.get("name", "")), function.get("arguments")
        try:
            parsed = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
            hermes.check_call(ToolCall(name=name, arguments=parsed))
        except (ValueError, RecursionError):  # also what ToolCall and check_call raise
            broken.append(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>')
        else:
            read.append(ToolCall(name=name, arguments=parsed, id=call.get("id")))  # the id is the server's
    return "\n".join([content, *broken] if content else broken), read


def _logprobs(given: Any) -> list[float] | None:
    """From a chat completion's {"content": [{"logprob"}]} or a completion's {"token_logprobs": […]}."""
    values: Any = [entry.get("logprob") for entry in _entries(given)]
    if not values and isinstance(given, dict):
        values = given.get("token_logprobs")
    if not isinstance(values, list) or all(value is None for value in values):
        return None
    for value in values:
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= ROUNDING:
            raise LogprobError(f"the server gave the log-probability {value!r:.40}; it must be a number of at most 0")
    return [float(value) for value in values]


def _entries(logprobs: Any) -> list[Json]:
    """What a chat completion says of each token."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []


def _ids(values: Any) -> list[int] | None:
    if not isinstance(values, list):
        return None
    for value in values:
        if type(value) is not int or not 0 <= value < MAX_ID:
            raise EngineError(f"the server gave the token id {value!r:.40}; it must be a whole number from 0")
    return values


def _count(response: Json, name: str) -> int:
    """A number that the server counted; 0 where it gives none."""
    usage = response.get("usage")
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < MAX_ID else 0


def _finish(reason: Any) -> Finish:
    """ "tool_calls" and "function_call" are ends like any other; a filter's cut is not the model's own end."""
    if reason == "length":
        return "length"
    return "abort" if reason in ("abort", "error", "content_filter") else "stop"
