import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.engines.local.engine import LocalEngine
from bough.engines.local.schedule import Request
from bough.policy.adapters import AdapterWeights, Lora
from bough.policy.policy import Policy
from tests.engines.local.playing import prompt, small_engine


@pytest.fixture
def engine() -> LocalEngine:
    return small_engine(Policy.load("tiny", device="cpu", lora=Lora(r=4)).eval(), fold=True)


def answer(engine: LocalEngine) -> None:
    """In time: a thread that has ended never answers."""

    async def ask() -> None:
        sampling = SamplingConfig(max_new_tokens=2)
        async with asyncio.timeout(60):
            await engine.generate("e", prompt("e", 5), sampling=sampling, seed=1, stop_ids=[])

    asyncio.run(ask())


def test_a_rest_ends_only_when_the_model_is_as_it_was(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch):
    reading, let_go, free = engine.reader.reading, threading.Event(), list[bool]()

    @contextmanager
    def held() -> Iterator[None]:
        with reading():
            yield
            let_go.wait()
        free.append(True)

    class Noticed(threading.Condition):
        """The worker lets go as soon as somebody else waits, and not before."""

        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is not engine._thread:
                let_go.set()
            return super().wait(timeout)

    monkeypatch.setattr(engine.reader, "reading", held)
    monkeypatch.setattr(engine, "_wake", Noticed())
    try:
        answer(engine)
        assert not free, "the answer is there while the model is still held"
        engine.rest()
        assert free
    finally:
        let_go.set()
        asyncio.run(engine.close())


def test_orders_are_done_when_a_rest_ends(engine: LocalEngine):
    answer(engine)
    engine.rest()
    assert engine.scheduler.residents
    with engine._wake:  # so that the worker cannot wake up before somebody waits for it
        engine.renew("after")
        engine.rest()
        assert not engine.scheduler.residents
    asyncio.run(engine.close())


def test_nobody_waits_for_a_worker_that_does_not_serve(engine: LocalEngine):
    engine.renew("before the first answer")
    engine.rest()
    answer(engine)
    asyncio.run(engine.close())
    engine.release("e")
    engine.rest()


def test_an_order_that_fails_is_heard_of_by_those_who_wait_and_ends_nothing(engine: LocalEngine):
    def fail() -> None:
        raise MemoryError("no room to fold")

    answer(engine)
    with engine._wake:  # both orders are there before the worker sees either
        engine.order(fail)
        waiting = asyncio.new_event_loop()
        sampling = SamplingConfig(max_new_tokens=2)
        asked = waiting.create_task(engine.generate("f", prompt("f", 5), sampling=sampling, seed=1, stop_ids=[]))
        waiting.call_soon(waiting.stop)
        waiting.run_forever()
    with pytest.raises(EngineError, match="MemoryError: no room to fold"):
        waiting.run_until_complete(asked)
    waiting.close()
    answer(engine)
    asyncio.run(engine.close())


def test_an_answer_arrives_though_another_of_its_step_fails(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch):
    async def both() -> list[object]:
        sampling = SamplingConfig(max_new_tokens=1)
        asked = [engine.generate(name, prompt(name, 5), sampling=sampling, seed=1, stop_ids=[]) for name in "ef"]
        answers = asyncio.gather(*asked, return_exceptions=True)
        asyncio.get_running_loop().call_soon(engine.resume)  # both have asked
        return await asyncio.wait_for(answers, 60)

    take = Request.take
    monkeypatch.setattr(Request, "take", lambda self, drawn: take(self, drawn if self.episode == "e" else None))
    engine.pause()
    assert [type(answer) for answer in asyncio.run(both())] == [Generated, EngineError]
    asyncio.run(engine.close())


@pytest.mark.parametrize("what", ["'red' could not be removed", "'blue' could not be set", "'new' could not be loaded"])
def test_after_a_change_that_failed_nothing_is_sampled_with_half_of_it(
    what: str, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
):
    """The records would say that it was the changed policy."""

    def fail(*_: object) -> None:
        raise MemoryError("no room to fold")

    answer(engine)
    engine.set_adapter("red", AdapterWeights({}))
    with monkeypatch.context() as patched:
        if "removed" in what:
            patched.setattr(engine.path.adapters, "remove", fail)
            engine.remove_adapter("red")
        elif "set" in what:
            patched.setattr(engine.path.adapters, "set", fail)
            engine.set_adapter("blue", AdapterWeights({}))
        else:
            patched.setattr(engine.reader, "renew", fail)
            engine.renew("new")
        engine.rest()
    with pytest.raises(EngineError, match=f"{what}: MemoryError: no room to fold"):
        answer(engine)
    engine.renew("newer")
    answer(engine)
    asyncio.run(engine.close())


def test_an_order_that_fails_beside_a_step_that_fails_does_not_end_the_thread(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
):
    def no_room() -> None:
        raise MemoryError("no room")

    def fail(_: object) -> None:
        engine.order(no_room)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(engine.runner, "run", fail)
        with pytest.raises(EngineError, match="ZeroDivisionError"):
            answer(engine)
    answer(engine)
    asyncio.run(engine.close())
