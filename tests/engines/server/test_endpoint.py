"""Real sockets: the openai client, plain urllib, clients that hang up, and a thousand sessions at a time."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bough.data.reader import read
from bough.engines.server.app import LOOPBACK_NAMES, Access, Endpoint, listen, make_app
from bough.engines.server.session import RecordedCall, Session
from bough.engines.server.store import TRAJECTORIES, Recorder, SessionOutcome, Store
from bough.errors import InputError
from bough.types import Trajectory
from tests.engines.server.fake import LOOK, TOOL, FakeChat, FakeEngine, body, make_recorder, post_to, user
from tests.later import Later

openai = Later("openai")


@asynccontextmanager
async def served(recorder: Recorder) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(make_app(recorder, Access(LOOPBACK_NAMES), model="fake"), listen("127.0.0.1", 0))
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.close()


def openai_client(endpoint: Endpoint, session: str) -> Any:
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=endpoint.base_url(session), api_key="none", max_retries=0, http_client=plain)


async def test_the_openai_client_talks_streams_and_calls_tools():
    replies = iter(["Hello.", f"I look.\n{LOOK}", "A mug."])
    recorder = make_recorder(FakeEngine(say=lambda _: next(replies)))
    async with served(recorder) as endpoint, openai_client(endpoint, "s") as ai:
        messages: list[Any] = [user("Hi")]
        first = await ai.chat.completions.create(model="m", messages=messages)
        messages += [first.choices[0].message, user("What is there?")]
        second = await ai.chat.completions.create(model="m", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        [call] = second.choices[0].message.tool_calls or []
        assert second.choices[0].finish_reason == "tool_calls" and call.function.arguments == '{"at": "shelf"}'
        messages += [second.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "mug"}]
        stream = await ai.chat.completions.create(
            model="m", messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )  # type: ignore[call-overload]
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "A mug."
        assert chunks[-1].usage.completion_tokens == 6
        assert [model.id async for model in ai.models.list()] == ["fake"]
        with pytest.raises(openai.BadRequestError, match="tool_choice is 'required'"):
            await ai.chat.completions.create(model="m", messages=messages, tool_choice="required")
        trajectory = await recorder.end("s", SessionOutcome(success=True))
    # The tools came with the second request: the first is a conversation of its own.
    assert [m.content for m in trajectory.messages][2:] == ["What is there?", f"I look.\n{LOOK}", "mug", "A mug."]
    assert [turn.prompt is None for turn in trajectory.turns] == [False, True, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_stops_its_generation_and_no_other(stream: bool):
    recorder = make_recorder(engine := FakeEngine(lambda _: "xxxxx", gate=asyncio.Event()))
    async with served(recorder) as endpoint, openai_client(endpoint, "stays") as ai:
        staying = asyncio.create_task(ai.chat.completions.create(model="m", messages=[user("Hi")]))  # type: ignore[list-item]
        host, port = endpoint.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        data = json.dumps(body(user("Hi"), stream=stream)).encode()
        head = f"POST /s/gone/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        while len(engine.asked) < 2:
            await asyncio.sleep(0.001)
        writer.close()
        while not engine.cancelled:
            await asyncio.sleep(0.001)
        assert engine.gate is not None
        engine.gate.set()
        assert (await staying).choices[0].message.content == "xxxxx"
        assert recorder.session("gone").calls == [] and recorder.in_flight == 0


def test_a_port_that_is_taken_is_an_input_error():
    with listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="choose another with --port"):
        listen("127.0.0.1", taken.getsockname()[1])


async def test_a_thousand_sessions_at_a_time_lose_nothing_and_leave_nothing_in_memory(tmp_path: Path):
    """Two requests each; all sessions are open at the same time, then all end."""
    count = 1000

    async def session(app: Any, name: str, all_open: asyncio.Barrier) -> None:
        path = f"/s/{name}/v1/chat/completions"
        first = await post_to(app, path, body(user(name)))
        await post_to(app, path, body(user(name), first["choices"][0]["message"], user("on")))
        await all_open.wait()
        assert (await post_to(app, f"/s/{name}/end", {"reward": 1.0}))["turns"] == 2

    def parts_of_sessions() -> int:
        gc.collect()
        return sum(type(one) in (Session, RecordedCall, Trajectory, FakeChat) for one in gc.get_objects())

    before = parts_of_sessions()
    engine = FakeEngine(say=lambda messages: f"to {messages[0].content}", forgets=True)
    recorder = make_recorder(engine, Store(tmp_path))
    app = make_app(recorder, Access(LOOPBACK_NAMES), model="fake")
    all_open = asyncio.Barrier(count + 1)
    sessions = [asyncio.create_task(session(app, f"s{n}", all_open)) for n in range(count)]
    await all_open.wait()
    assert recorder.open_sessions == count
    await asyncio.gather(*sessions)
    assert recorder.open_sessions == 0
    del sessions
    assert parts_of_sessions() == before, "what stays of a session is its name"
    await recorder.close()
    records = [record for record in read(tmp_path / TRAJECTORIES) if isinstance(record, Trajectory)]
    assert {record.id for record in records} == {f"s{n}" for n in range(count)} and len(records) == count
    for record in records:
        assert [m.content for m in record.messages] == [record.id, f"to {record.id}", "on", f"to {record.id}"]
