import asyncio
import time
from typing import Any

import pytest

from bough.engines.server import store as module
from bough.engines.server.chat import RefusedError
from bough.engines.server.store import Recorder, SessionOutcome
from tests.engines.server.fake import FakeEngine, make_recorder
from tests.engines.server.test_session import ask


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "ä", "a" * 129, ".hidden", "a\n", "a%2f"])
def test_names_that_could_be_paths_are_refused(name: str):
    with pytest.raises(RefusedError, match="a session's name"):
        make_recorder(FakeEngine()).session(name)


async def test_a_session_ends_once():
    recorder = make_recorder(FakeEngine())
    await recorder.answer("s", ask("one"))
    trajectory = await recorder.end("s", SessionOutcome(success=True))
    assert trajectory.id == "s" and recorder.open_sessions == 0
    for use in (recorder.end("s", SessionOutcome()), recorder.answer("s", ask("two"))):
        with pytest.raises(RefusedError, match=r"session s is closed \(it has ended\); use another") as caught:
            await use
        assert caught.value.status == 409


async def test_a_session_without_a_call_cannot_be_recorded_and_leaves_nothing():
    recorder = make_recorder(FakeEngine())
    with pytest.raises(RefusedError, match="has no finished call"):
        await recorder.end("s", SessionOutcome())
    assert recorder.open_sessions == 0
    await recorder.answer("s", ask("one"))


async def test_unused_sessions_are_closed_and_marked(monkeypatch: pytest.MonkeyPatch):
    ended = []
    recorder = make_recorder(engine := FakeEngine(), timeout_s=60.0)
    real = recorder.end

    async def end(name: str, outcome: SessionOutcome) -> Any:
        ended.append(await real(name, outcome))
        return ended[-1]

    monkeypatch.setattr(recorder, "end", end)
    await recorder.answer("old", ask("one"))
    recorder.session("empty")
    assert await recorder.sweep() == []
    engine.gate = asyncio.Event()
    busy = asyncio.create_task(recorder.answer("busy", ask("one")))
    while len(engine.asked) < 2:
        await asyncio.sleep(0)
    later = time.monotonic() + 61
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    assert sorted(await recorder.sweep()) == ["empty", "old"], "one in use stays"
    assert [(one.id, one.stop, one.success) for one in ended] == [("old", "session_timeout", None)]
    with pytest.raises(RefusedError, match="it timed out"):
        recorder.session("old")
    engine.gate.set()
    await busy


async def test_a_session_that_cannot_be_ended_keeps_no_other_open():
    recorder = make_recorder(FakeEngine(), timeout_s=-1.0)
    await recorder.answer("broken", ask("one"))
    recorder.session("broken").close("one of its calls could not be written")
    await recorder.answer("old", ask("one"))
    assert await recorder.sweep() == ["old"]


async def test_floods_are_refused_and_those_before_are_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 3)
    monkeypatch.setattr(module, "MAX_SESSIONS", 4)
    recorder = make_recorder(engine := FakeEngine(gate=asyncio.Event()))
    waiting = [asyncio.create_task(recorder.answer(f"s{n}", ask("one"))) for n in range(5)]
    while len(engine.asked) < 3:
        await asyncio.sleep(0)
    for refused in waiting[3:]:
        with pytest.raises(RefusedError) as caught:
            await refused
        assert caught.value.status == 429
    assert engine.gate is not None
    engine.gate.set()
    assert len(await asyncio.gather(*waiting[:3])) == 3 and recorder.in_flight == 0
    await recorder.answer("s3", ask("one"))
    with pytest.raises(RefusedError, match="4 sessions are open"):
        await recorder.answer("s4", ask("one"))


async def test_without_a_model_of_its_own_only_opened_sessions_exist():
    recorder, engine = Recorder(), FakeEngine()
    for name in ("s", None):
        with pytest.raises(RefusedError) as caught:
            await recorder.answer(name, ask("one"))
        assert caught.value.status == 404
    session = recorder.open("s", engine.config("s"))
    await recorder.answer("s", ask("one"))
    recorder.drop(session)
    with pytest.raises(RefusedError, match="there is no session s"):
        await recorder.answer("s", ask("one"))


async def test_an_agents_session_ends_with_its_agent_only():
    """A model whose code reaches the endpoint must not end its own episode, which would be played again."""

    recorder, engine = Recorder(), FakeEngine()
    session = recorder.open("s", engine.config("s"))
    await recorder.answer("s", ask("one"))
    with pytest.raises(RefusedError, match="ends when its agent function returns") as caught:
        await recorder.end("s", SessionOutcome(success=True))
    assert caught.value.status == 403 and session.closed is None
