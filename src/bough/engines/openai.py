"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, `transformers serve`, OpenAI itself.

Servers differ in what they understand. The engine asks for all it would like to have
(exact tokens above all), and what a server refuses by name is not asked of it again. A
server that gives no token ids gives answers without a call.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from bough.chat import template as fallback
from bough.chat import tool_calls
from bough.chat.template import ChatTemplate, with_hint
from bough.config.groups import SamplingConfig
from bough.engines.base import Answer, ContextFullError, EngineError
from bough.engines.chat import mix
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.errors import InputError, did_you_mean
from bough.types import ROUNDING, Call, Finish, Message, ToolCall

log = logging.getLogger(__name__)

# What a server may refuse without harm, and what it then does not give.
WISHES = {
    "return_token_ids": "exact tokens",
    "logprobs": "log-probabilities",
    "seed": "repeatable answers",
    "skip_special_tokens": "special tokens in the text",
    "include_stop_str_in_output": "the stop text at the end of an answer",
}
# How servers say that a conversation is too long: vLLM and OpenAI, SGLang, llama.cpp, TGI.
FULL = re.compile(
    r"maximum context length|context_length_exceeded|longer than the (maximum model|model's context) length"
    r"|exceed_context_size|exceeds the available context|exceeds the (model's )?(maximum )?context"
    r"|tokens \+ `?max_new_tokens`? must be",
    re.IGNORECASE,
)


class OpenAIEngine:
    """Chats with a server over /chat/completions.

    `template` is the served model's own, where it is at hand: with it the text of a call is
    the tokenizer's, and tools reach models whose template does not know them. Temperature
    and top-p are always sent, the rest of the sampling only if it is set: a server may
    have defaults of its own for those (vLLM takes them from the model's folder).
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        sampling: SamplingConfig | None = None,
        *,
        template: ChatTemplate | None = None,
        key_variable: str = "OPENAI_API_KEY",
        limits: ServerLimits | None = None,
    ) -> None:
        self.server = Server(url, key_variable=key_variable, limits=limits)
        self.name, self.sampling, self.template = model, sampling or SamplingConfig(), template
        self._refused: set[str] = set()
        self._tool_choice: str | None = None
        self._longest = "max_tokens"

    async def check(self) -> None:
        """Refuses to start where the server cannot be reached, refuses the key or does not know the model.

        Without a model's name the server's only one is taken.
        """
        known = await list_models(self.server)
        self.name = choose_model(self.name, known, self.server.url)

    def open(self, episode: str, *, seed: int) -> OpenAIChat:  # noqa: ARG002 (servers know no episodes)
        return OpenAIChat(self, seed)

    async def close(self) -> None:
        await self.server.close()

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]], seed: int, sampling: SamplingConfig | None = None
    ) -> Answer:
        """One chat completion, with what the server refuses left out."""
        sampling = sampling or self.sampling
        path = "/chat/completions"
        while True:
            body = self._body(messages, tools, seed, sampling)
            try:
                response = await self.server.post(path, body)
            except RequestRefusedError as refusal:
                if context_is_full(refusal):
                    raise ContextFullError(f"the conversation is too long for {self.name}: {refusal.words}") from None
                if not self._learn(refusal, body):
                    raise
                continue
            answer = read_answer(response, template=self.template, where=f"{self.server.url}{path}")
            if answer.call is None:
                return answer
            return replace(answer, call=answer.call.model_copy(update={"temperature": sampling.temperature}))

    def _body(
        self, messages: list[Message], tools: list[dict[str, Any]], seed: int, sampling: SamplingConfig
    ) -> dict[str, Any]:
        written, offered = conversation(messages, tools, self.template)
        wishes: dict[str, Any] = {
            # Some servers keep seeds in 32 bits, and not all of them without a sign.
            "seed": seed % (1 << 31),
            "logprobs": True,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.stop:
            wishes["include_stop_str_in_output"] = True
        only_if_set = {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": sampling.stop,
            "tools": offered,
            "tool_choice": self._tool_choice if offered else None,
        }
        return {
            "model": self.name,
            "messages": written,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._longest: sampling.max_new_tokens,
            **{key: value for key, value in wishes.items() if key not in self._refused},
            **{key: value for key, value in only_if_set.items() if value},
        }

    def _learn(self, refusal: RequestRefusedError, body: dict[str, Any]) -> bool:
        """Whether the refusal names something that can be asked differently."""
        if refusal.status not in (400, 422):
            return False
        words = refusal.words
        named = {key for key in body if re.search(rf"\b{key}\b", words)}
        if "max_completion_tokens" in words and "max_tokens" in named:
            self._longest = "max_completion_tokens"
            return True
        if "tools" in body and "tool_choice" not in body and "tool-call-parser" in words:
            # vLLM without a tool parser: the model sees the tools, and its calls stay in its text.
            self._tool_choice = "none"
            return True
        if unmet := named & {"top_k", "min_p", "temperature", "top_p", "stop"}:
            raise InputError(
                f"the server at {self.server.url} does not take {' and '.join(sorted(unmet))} as set: {words}"
            )
        new = named & set(WISHES)
        # Another call may have learned the same meanwhile: then this one is only sent again.
        for key in new - self._refused:
            log.warning("The server at %s does not know %s: no %s.", self.server.url, key, WISHES[key])
        self._refused |= new
        return bool(new)


class OpenAIChat:
    """One episode's chat. The server keeps what it likes of it; we send the whole conversation each time."""

    def __init__(self, engine: OpenAIEngine, seed: int) -> None:
        self.engine, self.seed = engine, seed
        self._answers = 0

    async def answer(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        *,
        sampling: SamplingConfig | None = None,
        seed: int | None = None,
    ) -> Answer:
        drawn = mix(self.seed, self._answers) if seed is None else seed
        answer = await self.engine.complete(messages, tools, drawn, sampling)
        self._answers += 1
        return answer

    def close(self) -> None:
        return


def context_is_full(refusal: RequestRefusedError) -> bool:
    """Whether a server means that the conversation is too long."""
    return refusal.status in (400, 413, 422) and bool(FULL.search(refusal.words))


async def list_models(server: Server) -> dict[str, dict[str, Any]]:
    """What the server says of each model it serves."""
    try:
        listed = await server.get("/models")
    except RequestRefusedError as refusal:
        if refusal.status in (401, 403):
            raise InputError(str(refusal)) from None
        raise InputError(f"there is no OpenAI-compatible server at {server.url}: {refusal.words}") from None
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        raise EngineError(f"{server.url}/models answered without a list of models")
    return {entry["id"]: entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)}


def choose_model(wanted: str, known: Iterable[str], where: str) -> str:
    """`wanted`, if the server has it; its only model, if none is wanted."""
    known = list(known)
    if not wanted and len(known) == 1:
        return known[0]
    if not wanted:
        raise InputError(f"{where} serves {len(known)} models; name one of them: {', '.join(known[:20])}")
    # An empty list says nothing: some servers load what they are asked for.
    if known and wanted not in known:
        raise InputError(f"{where} does not serve {wanted!r}{did_you_mean(wanted, known[:20])}")
    return wanted


# Conversations as OpenAI-compatible servers read and write them: JSON on the wire, `Message` and `Call` here.

Json = dict[str, Any]
MAX_ID = 1 << 31
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
    # Calls and results that have no id get one: servers match them by it.
    written, waiting = [], []  # type: list[Json], list[str]
    for number, message in enumerate(messages):
        spoken: Json = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            spoken |= dict.fromkeys(THINKING, message.reasoning)
        if message.tool_calls:
            waiting = [call.id or f"call_{number}_{i}" for i, call in enumerate(message.tool_calls)]
            spoken["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for call, id in zip(message.tool_calls, waiting, strict=True)
            ]
        if message.role == "tool":
            id = message.tool_call_id or (waiting[0] if waiting else f"call_{number}")
            waiting = [other for other in waiting if other != id]
            spoken["tool_call_id"] = id
        if message.name is not None:
            spoken["name"] = message.name
        written.append(spoken)
    return written, tools


def read_answer(response: Any, *, template: ChatTemplate | None, where: str) -> Answer:
    """The first choice of a chat completion. `call` is None unless both prompt and answer came as token ids.

    An answer that cannot be used, in whatever way, is an EngineError.
    """
    try:
        choice = read_choice(response, where)
        said = choice.get("message")
        if not isinstance(said, dict):
            raise EngineError(f"{where} answered without a message: {json.dumps(response)[:200]}")
        # "tool_calls" and "function_call" are ends like any other; a filter's cut is not the model's own end.
        reason = choice.get("finish_reason")
        cut = "abort" if reason in ("abort", "error", "content_filter") else "stop"
        finish: Finish = "length" if reason == "length" else cut  # type: ignore[assignment]
        ended_with = _ending(choice, said, finish)
        call = _read_call(response, choice, said, finish, ended_with, template)
        content, calls = _read_tool_calls(_text(said).removesuffix(ended_with), said.get("tool_calls"))
        reasoning = next((said[key] for key in THINKING if isinstance(said.get(key), str)), None)
        message = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
        to_json([message, call])  # half a surrogate pair is text to Python, but to no file
        counts = [_count(response, name) for name in ("prompt_tokens", "completion_tokens")]
        num_tokens = [len(call.prompt_ids), len(call.completion_ids)] if call else counts
        return Answer(message, call, finish, *num_tokens)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{where} gave an answer that cannot be used: {error!s:.200}") from None


def read_tokens(response: Any, choice: Json) -> tuple[list[int], list[int], list[float] | None] | None:
    """Prompt, answer and log-probabilities, if the server gives the tokens; None for what it does not give.

    What it gives and cannot be right is an EngineError: nothing should be trained on it.
    """
    prompt = _ids(response.get("prompt_token_ids") or choice.get("prompt_token_ids"))
    ids = _ids(choice.get("token_ids"))
    if prompt is None or ids is None:
        return None
    logprobs = read_logprobs(choice.get("logprobs"))
    if logprobs is not None and len(logprobs) != len(ids):
        raise EngineError(f"the server gave {len(logprobs)} log-probabilities for {len(ids)} tokens")
    return prompt, ids, logprobs


def read_choice(response: Any, where: str) -> Json:
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EngineError(f"{where} answered without choices: {json.dumps(response)[:200]}")
    return choices[0]


def _read_call(
    response: Json, choice: Json, said: Json, finish: Finish, ended_with: str, template: ChatTemplate | None
) -> Call | None:
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
        text = _text(said).removesuffix(ended_with)
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
            tool_calls.check_call(ToolCall(name=name, arguments=parsed))
        except (ValueError, RecursionError):  # also what ToolCall and check_call raise
            broken.append(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>')
        else:
            read.append(ToolCall(name=name, arguments=parsed, id=call.get("id")))  # the id is the server's
    return "\n".join([content, *broken] if content else broken), read


def read_logprobs(given: Any) -> list[float] | None:
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
