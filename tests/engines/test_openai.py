"""The engine for OpenAI-compatible servers, against a stand-in that answers as the real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bough.chat.template import CallBuilder, ChatTemplate, load_template
from bough.config.groups import SamplingConfig
from bough.engines.base import Answer, ContextFullError, EngineError
from bough.engines.http import ServerLimits
from bough.engines.openai import OpenAIEngine
from bough.errors import InputError
from bough.types import Message, Turn
from tests.engines.stand_in import Json, Reply, said, serving, vllm_chat

KEY = "sk-not-for-your-eyes-42"
START = [Message(role="user", content="Where is the lamp?")]
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
QUICK = ServerLimits(retries=2, backoff_s=0.001)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_template("tiny")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def ask(
    url: str,
    *conversations: list[Message],
    tools: list[Json] | None = None,
    sampling: SamplingConfig | None = None,
    template: ChatTemplate | None = None,
    seed: int = 1,
) -> list[Answer]:
    """The answers of one chat to conversations, one after the other."""

    async def run() -> list[Answer]:
        engine = OpenAIEngine(url, "tiny", sampling, template=template, limits=QUICK)
        chat = engine.open("episode", seed=seed)
        try:
            return [await chat.answer(messages, tools or []) for messages in conversations or (START,)]
        finally:
            chat.close()
            await engine.close()

    return asyncio.run(run())


def check(url: str, model: str = "", **more: Any) -> OpenAIEngine:
    async def run() -> OpenAIEngine:
        engine = OpenAIEngine(url, model, **more)
        try:
            await engine.check()
        finally:
            await engine.close()
        return engine

    return asyncio.run(run())


def refusing(*fields: str, words: str = "Unknown parameter: '{}'.", status: int = 400) -> Callable[[Json], Reply]:
    """A server that knows none of `fields` and complains about one at a time."""

    def answer(body: Json) -> Reply:
        unknown = next((field for field in fields if field in body), None)
        return Reply({"error": {"message": words.format(unknown)}}, status) if unknown else said("Here.")

    return answer


def test_what_is_asked_of_the_server():
    sampling = SamplingConfig(temperature=0.7, top_p=0.9, max_new_tokens=5)
    with serving(said("On the desk.")) as server:
        (answer,) = ask(server.url, tools=[TOOL], sampling=sampling)
    assert answer.message == Message(role="assistant", content="On the desk.")
    assert server.paths == ["/v1/chat/completions"]
    (body,) = server.asked
    assert 0 <= body.pop("seed") < 2**31
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Where is the lamp?"}],
        "tools": [TOOL],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 5,
        "logprobs": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    with serving(said("x")) as server:
        ask(server.url, sampling=SamplingConfig(top_k=5, min_p=0.1, stop=["\n"]))
    only_if_set = {"top_k": 5, "min_p": 0.1, "stop": ["\n"], "include_stop_str_in_output": True}
    assert server.asked[0].items() >= only_if_set.items()


def test_each_answer_has_a_seed_of_its_own_fixed_by_the_episodes():
    with serving(said("x")) as server:
        for seed in (1, 1, 2):
            ask(server.url, START, START, seed=seed)
    seeds = [body["seed"] for body in server.asked]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4


def test_a_server_that_gives_tokens_gives_exact_calls(template):
    with serving(lambda body: vllm_chat(template, "ACTION: look", body)) as server:
        (answer,) = ask(server.url, template=template, sampling=SamplingConfig(temperature=0.7))
    call = answer.call
    assert call is not None
    assert (call.temperature, call.logprobs_temperature) == (0.7, 1.0)
    assert call.prompt_ids == template.encode_prompt(template.prompt(START, []))
    assert call.completion_ids == template.encode_answer("ACTION: look")
    assert call.logprobs == [-0.5 - i for i in range(len(call.completion_ids))]
    assert (call.text, call.finish, call.policy) == ("ACTION: look", "stop", "tiny")
    (built,) = CallBuilder(template).build(START, [Turn(reply=answer.message, call=call)], [])
    assert built.call == call


@pytest.mark.parametrize("text", ["ACTION: look", "Schöner ☃", "<|im_start|>odd"])
def test_the_tokens_are_the_trainers_even_without_the_template_at_hand(template, text):
    with serving(lambda body: vllm_chat(template, text, body, ended=False)) as server:
        (answer,) = ask(server.url)
    (built,) = CallBuilder(template).build(START, [Turn(reply=answer.message, call=answer.call)], [])
    assert answer.call is not None and built.call == answer.call
    assert answer.finish == "length"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("Unknown parameter: '{}'.", 400),
        ("Unrecognized request argument supplied: {}", 400),
        ("Unexpected fields in the request: {{'{}'}}", 422),
    ],
)
def test_what_a_server_does_not_know_is_not_asked_of_it_again(words, status, caplog):
    unknown = ("return_token_ids", "skip_special_tokens", "logprobs", "seed")
    with serving(refusing(*unknown, words=words, status=status)) as server:
        first, second = ask(server.url, START, START)
    assert first.message.content == second.message.content == "Here." and first.call is None
    assert len(server.asked) == 6  # a refusal for each, then two answers
    assert not set(unknown) & set(server.asked[-1])
    assert caplog.text.count("does not know return_token_ids: no exact tokens") == 1


@pytest.mark.parametrize("field", ["top_k", "min_p"])
def test_sampling_that_a_server_does_not_know_is_never_dropped(field):
    sampling = SamplingConfig(top_k=5, min_p=0.1)
    with serving(refusing(field)) as server, pytest.raises(InputError, match=f"does not take {field} as set"):
        ask(server.url, sampling=sampling)


def test_newer_models_want_another_name_for_the_longest_answer():
    words = "Unsupported parameter: '{}' is not supported with this model. Use 'max_completion_tokens' instead."
    with serving(refusing("max_tokens", words=words)) as server:
        ask(server.url, sampling=SamplingConfig(max_new_tokens=9))
    assert server.asked[1]["max_completion_tokens"] == 9


def test_a_vllm_without_a_tool_parser_shows_the_tools_and_leaves_calls_in_the_text():
    refusal = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    with serving(
        lambda body: Reply({"error": {"message": refusal}}, 400) if "tool_choice" not in body else said("x")
    ) as s:
        ask(s.url, START, START, tools=[TOOL])
    assert [body.get("tool_choice") for body in s.asked] == [None, "none", "none"]
    assert all(body["tools"] == [TOOL] for body in s.asked)


@pytest.mark.parametrize(
    "refusal",
    [
        {"message": "This model's maximum context length is 64 tokens. However, your prompt contains 90 input tokens."},
        {"message": "Please reduce the length of the messages.", "code": "context_length_exceeded"},
        {"message": "The input (90 tokens) is longer than the model's context length (64 tokens)."},
        {"message": "the request exceeds the available context size, try increasing it", "type": "invalid_request"},
        {"message": "request (90 tokens) too big", "type": "exceed_context_size_error"},
        {"message": "The decoder prompt (length 90) is longer than the maximum model length of 64."},
    ],
)
def test_a_conversation_that_is_too_long_is_a_full_context(refusal):
    with serving(Reply({"error": refusal}, 400)) as server, pytest.raises(ContextFullError, match="too long for tiny"):
        ask(server.url)
    assert len(server.asked) == 1


def test_any_other_refusal_is_an_engine_error_in_the_servers_words():
    refusal = Reply({"error": {"message": "messages must alternate"}}, 400)
    with serving(refusal) as server, pytest.raises(EngineError, match="messages must alternate") as failure:
        ask(server.url)
    assert not isinstance(failure.value, ContextFullError) and len(server.asked) == 1
    with serving(Reply({"error": {"message": "seed is broken"}}, 404)) as server, pytest.raises(EngineError):
        ask(server.url)
    assert len(server.asked) == 1  # it names something of ours, but not as a thing it does not know


def test_a_check_finds_the_only_model():
    with serving(said("x")) as server:
        assert check(server.url).name == "tiny"
        assert check(server.url, "tiny").name == "tiny"
    with serving(said("x"), models=Reply({"data": []})) as server:  # one that serves what it is asked for
        assert check(server.url, "any/model").name == "any/model"
        with pytest.raises(InputError, match="serves 0 models"):
            check(server.url)


def test_a_check_says_what_is_wrong_before_a_run_starts():
    with serving(said("x")) as server, pytest.raises(InputError, match="does not serve 'tini'; did you mean tiny"):
        check(server.url, "tini")
    two = Reply({"data": [{"id": "a"}, {"id": "b"}]})
    with (
        serving(said("x"), models=two) as server,
        pytest.raises(InputError, match="serves 2 models; name one of them: a, b"),
    ):
        check(server.url)
    none = Reply({"detail": "Not Found"}, 404)
    with serving(said("x"), models=none) as server, pytest.raises(InputError, match="no OpenAI-compatible server at"):
        check(server.url, "tiny")
    with serving(said("x"), models=Reply({"hello": 1})) as server, pytest.raises(EngineError, match="without a list"):
        check(server.url, "tiny")
    with pytest.raises(EngineError, match="cannot be reached"):
        check("http://127.0.0.1:1", "tiny")
