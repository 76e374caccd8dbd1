"""Requests over real HTTP on loopback: what is tried again, what is not, and where the key never goes."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import pytest

from bough.engines.base import EngineError
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.errors import InputError
from tests.engines.stand_in import Reply, in_turn, serving

KEY = "sq7Zvery-secret-1234567890"
FINE = Reply({"fine": True})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def ask(url: str, *, waits: list[float] | None = None, body: dict[str, Any] | None = None, **limits: Any) -> Any:
    """Posts once; waits between tries are noted, not waited."""

    async def run() -> Any:
        server = Server(url, limits=ServerLimits(**{"retries": 3, "backoff_s": 8.0} | limits))

        async def note(wait_s: float) -> None:
            (waits if waits is not None else []).append(wait_s)

        server.sleep = note
        try:
            return await server.post("/x", body or {})
        finally:
            await server.close()

    return asyncio.run(run())


def test_an_answer_comes_back_and_the_key_goes_along(monkeypatch):
    with serving(FINE) as server:
        assert ask(server.url, body={"a": ["ä"]}) == {"fine": True}
        monkeypatch.delenv("OPENAI_API_KEY")
        ask(server.url)
    assert server.asked == [{"a": ["ä"]}, {}] and server.paths == ["/v1/x"] * 2
    assert [headers.get("authorization") for headers in server.headers] == [f"Bearer {KEY}", None]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again_with_growing_waits(status):
    waits: list[float] = []
    trouble = Reply({"error": "busy"}, status)
    with serving(in_turn(trouble, trouble, trouble, FINE)) as server:
        assert ask(server.url, waits=waits) == {"fine": True}
    assert len(server.asked) == 4
    # 8, 16, 32 seconds, each between half and all of it.
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (8, 16, 32), strict=True))


def test_a_server_that_says_when_is_not_asked_earlier_or_given_up():
    waits: list[float] = []
    with serving(in_turn(Reply({}, 429, {"retry-after": "57"}), FINE)) as server:
        ask(server.url, waits=waits)
    assert waits == [57]
    later = Reply({"error": {"message": "come back tomorrow"}}, 429, {"retry-after": "86400"})
    with serving(later) as server, pytest.raises(EngineError, match=r"answered 429: come back tomorrow$"):
        ask(server.url)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_is_not_repeated(status):
    no = Reply({"error": {"message": "no", "code": status}}, status)
    with serving(no) as server, pytest.raises(RequestRefusedError, match=f"answered {status}: no") as refusal:
        ask(server.url)
    assert len(server.asked) == 1
    assert (refusal.value.status, refusal.value.words) == (status, "no")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "too long (context_length_exceeded)"),
        ({"error": "plain"}, "plain"),
        ({"object": "error", "message": "older vLLM"}, "older vLLM"),
        ({"detail": "FastAPI"}, "FastAPI"),
        ({"detail": [{"loc": ["body", "top_k"], "msg": "extra"}]}, '[{"loc": ["body", "top_k"], "msg": "extra"}]'),
        (b"<html>proxy</html>", "<html>proxy</html>"),
        (b"", "no explanation"),
        (b"\x1b[2Jboo", "␛[2Jboo"),
    ],
)
def test_the_servers_words_are_found_wherever_it_puts_them(body, words):
    with serving(Reply(body, 400)) as server, pytest.raises(RequestRefusedError) as refusal:
        ask(server.url)
    assert refusal.value.words == words


def test_answers_that_are_no_json_are_tried_again():
    whole = b'{"choices": [{"message": {"content": "hello"}}]}'
    broken = [Reply(whole[:20]), Reply(whole[:20], length=len(whole)), Reply(b"<html>gateway</html>")]
    with serving(in_turn(*broken, Reply(whole))) as server:
        assert ask(server.url)["choices"][0]["message"]["content"] == "hello"
    assert len(server.asked) == 4
    with serving(broken[2]) as server, pytest.raises(EngineError, match="not JSON: '<html>gateway"):
        ask(server.url)


def test_a_slow_answer_is_given_up_and_asked_for_again():
    with serving(in_turn(Reply({}, delay_s=5), FINE)) as server:
        assert ask(server.url, timeout_s=0.5) == {"fine": True}
    with serving(Reply({}, delay_s=5)) as server, pytest.raises(EngineError, match="did not answer within"):
        ask(server.url, timeout_s=0.2, retries=1)


def test_no_more_requests_are_under_way_than_allowed():
    async def run(url: str) -> None:
        server = Server(url, limits=ServerLimits(concurrency=3))
        await asyncio.gather(*(server.post("/x", {}) for _ in range(12)))
        await server.close()

    with serving(Reply({}, delay_s=0.05)) as server:
        asyncio.run(run(server.url))
    assert len(server.asked) == 12
    assert server.most_at_once == 3


def test_a_server_serves_one_event_loop_after_another():
    with serving(FINE) as stand_in:
        server = Server(stand_in.url)
        assert [asyncio.run(server.post("/x", {})) for _ in range(2)] == [{"fine": True}] * 2


def test_a_redirect_is_not_followed():
    with serving(FINE) as target, serving(Reply({}, 307, {"location": target.url})) as server:
        with pytest.raises(RequestRefusedError) as refusal:
            ask(server.url)
        assert refusal.value.words == f"it moved to {target.url}; give that address"
    assert target.headers == []


def test_an_address_may_be_given_in_several_ways():
    assert Server("http://127.0.0.1:8000/").url == Server("http://127.0.0.1:8000").url == "http://127.0.0.1:8000/v1"
    assert Server("https://example.com/proxy/v1/chat/completions").url == "https://example.com/proxy/v1"


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/passwd", "http://", "http://h:port/v1"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InputError, match="is not a server address"):
        Server(url)


@pytest.mark.parametrize("url", [f"https://user:{KEY}@host/v1", f"https://{KEY}@host/v1", f"https://host/v1?key={KEY}"])
def test_a_key_in_the_address_is_refused_and_not_repeated(url):
    with pytest.raises(InputError, match="from the environment only") as refusal:
        Server(url)
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize("value", [f"{KEY}\nX-Other:1", f"{KEY}\x7f", f"{KEY} x", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch, value):
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(InputError, match="MY_KEY contains no usable key") as refusal:
        Server("https://host/v1", key_variable="MY_KEY")
    assert value[:10] not in str(refusal.value)


def test_a_key_that_would_travel_unencrypted_is_warned_about(caplog):
    for url in ("http://127.0.0.1/v1", "http://localhost:1/v1", "https://example.com/v1"):
        Server(url)
    assert caplog.text == ""
    Server("http://example.com/v1")
    assert "OPENAI_API_KEY is sent unencrypted to example.com" in caplog.text and KEY not in caplog.text


def test_the_key_is_in_no_message_no_traceback_and_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    echo = Reply({"error": {"message": f"{'x' * 565} Incorrect API key provided: {KEY}"}}, 401)
    artefacts = []
    for reply in (echo, Reply(f"Bearer {KEY}".encode()), Reply({"error": KEY}, 500), Reply({}, delay_s=5)):
        with serving(reply) as server, pytest.raises(EngineError) as failure:
            ask(server.url, timeout_s=0.3 if reply.delay_s else 20)
        error = failure.value
        artefacts += [str(error), repr(error), *traceback.format_exception(error), str(vars(error))]
        if reply is echo:
            assert "It was given the key in OPENAI_API_KEY." in str(error)
            assert str(error).count("x") > 500 and "provided: ***" in str(error)
    server = Server("https://host/v1")
    artefacts += [repr(server), str(server)]
    everything = "\n".join([*artefacts, caplog.text])
    assert "cannot be reached" in everything or "did not answer" in everything
    assert KEY[:4] not in everything  # not even the beginning of it, where a message is cut
