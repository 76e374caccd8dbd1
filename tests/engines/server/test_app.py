"""The endpoint as its clients see it."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from bough.engines.base import ContextFullError, EngineError
from bough.engines.server import app, chat
from bough.engines.server import app as answer
from bough.engines.server.app import Access, access
from bough.engines.server.store import Recorder, SessionOutcome
from bough.errors import InputError
from bough.types import Message
from tests.engines.server.fake import LOOK, TOOL, FakeEngine, body, client, events, make_recorder, user

Play = Callable[[httpx2.AsyncClient, Recorder], Awaitable[Any]]
CHAT = "/v1/chat/completions"


def on(engine: FakeEngine, play: Play, access: Access | None = None) -> Any:
    async def run() -> Any:
        recorder = make_recorder(engine)
        async with client(recorder, access) as http:
            return await play(http, recorder)

    return asyncio.run(run())


def post(engine: FakeEngine, path: str, content: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
    async def play(http: httpx2.AsyncClient, _: Recorder) -> httpx2.Response:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        return await http.post(path, content=data, headers=headers)

    return on(engine, play)


def error_of(response: httpx2.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["message"]


def test_a_completion_is_what_openai_would_answer():
    response = post(FakeEngine(), CHAT, body(user("Hello"), n=1, logprobs=True))
    whole = response.json()
    assert response.status_code == 200 and whole["object"] == "chat.completion" and whole["model"] == "fake"
    [choice] = whole["choices"]
    assert choice["message"]["content"] == "reply 1" and choice["index"] == 0
    assert whole["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    tokens = whole["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == "reply 1" and tokens[0]["logprob"] == -0.5
    assert "prompt_token_ids" not in whole


@pytest.mark.parametrize("large", [False, True])
def test_a_large_body_is_read_outside_the_event_loop(large: bool, monkeypatch: pytest.MonkeyPatch):
    on_loop = list[bool]()

    def noting(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(given: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return function(given)

        return noted

    monkeypatch.setattr(chat, "read_object", noting(chat.read_object))
    monkeypatch.setattr(chat, "reply_key", noting(chat.reply_key))
    monkeypatch.setattr(app, "read_outcome", noting(app.read_outcome))
    text = "x" * (app.MAX_ON_LOOP if large else 1)

    async def play(http: httpx2.AsyncClient, _: Recorder) -> list[int]:
        asked = await http.post(f"/s/a{CHAT}", json=body(user(text)))
        return [asked.status_code, (await http.post("/s/a/end", json={"task": text})).status_code]

    assert on(FakeEngine(), play) == [200, 200]
    assert on_loop == [not large] * 3


def test_exact_tokens_are_given_to_those_who_ask():
    whole = post(FakeEngine(say=lambda _: "hi END"), CHAT, body(user("x"), stop="END", return_token_ids=True)).json()
    assert bytes(whole["prompt_token_ids"]) == b"user:x\n"
    assert bytes(whole["choices"][0]["token_ids"]) == b"hi END" and whole["choices"][0]["stop_reason"] == "END"


def test_a_stream_has_the_same_parts_then_the_usage_then_done():
    asked = body(user("x"), stream=True, stream_options={"include_usage": True}, tools=[TOOL])
    response = post(FakeEngine(say=lambda _: f"I look.\n{LOOK}"), CHAT, asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(response.text)
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == len(f"I look.\n{LOOK}")
    assert len({chunk["id"] for chunk in chunks}) == 1 and all(chunk["usage"] is None for chunk in chunks)
    *plain, done = events(post(FakeEngine(), CHAT, body(user("x"), stream=True)).text)
    assert done == "[DONE]" and all("usage" not in chunk for chunk in plain)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[1] == {"content": "I look."}
    assert deltas[2]["tool_calls"][0]["index"] == 0 and deltas[2]["tool_calls"][0]["function"]["name"] == "look"
    assert deltas[3] == {} and [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 3 + ["tool_calls"]


async def test_a_call_in_a_json_block_is_understood_and_counted_as_malformed():
    said = 'I look.\n```json\n{"name": "look", "arguments": {"at": "shelf"}}\n```'
    recorder = make_recorder(FakeEngine(say=lambda _: said))
    async with client(recorder) as http:
        answered = await http.post(f"/s/a{CHAT}", json=body(user("x"), tools=[TOOL]))
        [choice] = answered.json()["choices"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I look."
        result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "a mug"}
        await http.post(f"/s/a{CHAT}", json=body(user("x"), choice["message"], result, tools=[TOOL]))
        trajectory = await recorder.end("a", SessionOutcome())
        assert [turn.error for turn in trajectory.turns] == ["malformed", "malformed"]
        assert [message.content for message in trajectory.messages] == ["x", said, "a mug", said]


async def test_a_session_is_a_path_or_a_header():
    recorder = make_recorder(FakeEngine())
    async with client(recorder) as http:
        await http.post(f"/s/a{CHAT}", json=body(user("one")))
        await http.post(CHAT, json=body(user("one")), headers={"X-Session-ID": "a"})
        assert len(recorder.session("a").calls) == 2
        ended = await http.post("/s/a/end", json={"success": True, "reward": 0.7, "task": "t"})
        said = {"id": "a", "task": "t", "turns": 2, "success": True, "reward": 0.7, "rewritten_prompts": 0}
        assert ended.json() == said
        assert error_of(await http.post(f"/s/a{CHAT}", json=body(user("one"))))[0] == 409
        assert error_of(await http.post("/s/a/end"))[0] == 409
        await http.post(f"/s/b{CHAT}", json=body(user("one")))
        assert (await http.post("/s/b/end")).json()["success"] is None


async def test_models_and_health():
    async with client(make_recorder(FakeEngine())) as http:
        for path in ("/v1/models", "/s/a/v1/models"):
            assert [one["id"] for one in (await http.get(path)).json()["data"]] == ["fake"]
        assert (await http.get("/v1/models/fake")).json()["id"] == "fake"
        assert error_of(await http.get("/v1/models/other"))[0] == 404
        assert (await http.get("/health")).json() == {"status": "ok", "open_sessions": 0, "in_flight": 0}


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        (CHAT, b"\x00garbage", 400, "the body is not JSON"),
        (CHAT, b"", 400, "the body is not JSON"),
        (CHAT, {"messages": "hello"}, 400, "messages is 'hello'"),
        (CHAT, body(user("x"), n=1000), 400, "n is 1000: Input should be less than or equal to 1"),
        (f"/s/a%2fb{CHAT}", body(user("x")), 404, "is not possible here; chat completions are at"),
        (f"/s/a b{CHAT}", body(user("x")), 400, "a session's name"),
        ("/s/..%00/end", {}, 400, "a session's name"),
        ("/s/a/end", {"success": "maybe"}, 400, "success is 'maybe': Input should be a valid boolean"),
        ("/s/a/end", {}, 400, "no finished call"),
        ("/v1/completions", body(user("x")), 404, "/v1/chat/completions"),
        ("/v1/models", {}, 405, "POST /v1/models is not possible here"),
    ],
)
def test_every_mistake_gets_a_sentence(path: str, content: Any, status: int, words: str):
    found = error_of(post(FakeEngine(), path, content))
    assert found[0] == status and words in found[1]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextFullError("too long"), 400, "context_length_exceeded"),
        (EngineError("the engine is gone"), 502, "engine_error"),
        (RuntimeError("a bug"), 500, "internal_error"),
    ],
)
def test_failures_have_a_status_and_a_code(error: Exception, status: int, code: str):
    def fail(_: list[Message]) -> str:
        raise error

    response = post(FakeEngine(say=fail), CHAT, body(user("x"), stream=True))
    assert error_of(response)[0] == status and response.json()["error"]["code"] == code
    assert str(error) in response.json()["error"]["message"]


def test_a_body_that_is_too_large_is_refused_without_being_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answer, "MAX_BODY", 1000)
    engine = FakeEngine()
    assert error_of(post(engine, CHAT, body(user("x" * 2000))))[0] == 413
    assert error_of(post(engine, CHAT, body(user("x" * 2000)), {"content-length": "10"}))[0] == 413, "it lied"
    assert engine.asked == []


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answer, "BODY_TIMEOUT_S", 0.01)

    async def play(http: httpx2.AsyncClient, _: Recorder) -> httpx2.Response:
        async def slow() -> Any:
            yield b"{"
            await asyncio.Event().wait()

        return await http.post(CHAT, content=slow())

    assert error_of(on(FakeEngine(), play))[0] == 408


async def test_a_key_is_asked_for_where_there_is_one():
    key = "a-key-of-16-chars"
    async with client(make_recorder(FakeEngine()), Access(None, key)) as http:
        for header in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": key},
            {"authorization": f"Basic {key}"},
        ):
            assert error_of(await http.post(CHAT, json=body(user("x")), headers=header))[0] == 401
        right = {"authorization": f"Bearer {key}"}
        assert (await http.post(CHAT, json=body(user("x")), headers=right)).status_code == 200
        assert (await http.get("/health")).status_code == 200


def test_an_address_that_others_can_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("A_KEY", raising=False)
    assert access("127.0.0.1", "A_KEY").key is None
    with pytest.raises(InputError, match=r"--host 0\.0\.0\.0: other machines could reach"):
        access("0.0.0.0", "A_KEY")
    monkeypatch.setenv("A_KEY", "short")
    with pytest.raises(InputError, match="shorter than 16"):
        access("example.org", "A_KEY")
    monkeypatch.setenv("A_KEY", "a-key-of-16-chars")
    assert access("0.0.0.0", "A_KEY") == Access(None, "a-key-of-16-chars")
    assert access("::1", "A_KEY").key == "a-key-of-16-chars", "on loopback too, once there is one"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[", "host": "localhost"}, 403),
        ({"origin": "http://127.0.0.1"}, 200),
        ({"host": "localhost:8000"}, 200),
    ],
)
def test_web_pages_of_others_may_not_use_it(headers: dict[str, str], status: int):
    assert post(FakeEngine(), CHAT, body(user("x")), headers).status_code == status
