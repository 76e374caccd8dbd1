"""Episodes of agent functions, against the real endpoint and an engine that needs no model."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.engines.base import ContextFullError, EngineError
from bough.engines.server.store import SessionOutcome
from bough.environments.base import EnvironmentFailedError
from bough.environments.isolated import shut_down
from bough.environments.registry import own_agent
from bough.rollouts import episode as own_agent_module
from bough.rollouts.collect import Attempt, LocalRunner, Tally, collect
from bough.rollouts.episode import ModelAgent, play, read_result
from bough.types import Task, Trajectory
from tests.engines.server.fake import FakeEngine, body, user

TASK = Task(id="t", data={"question": "one"})


def ask(base_url: str, *messages: Any, **more: Any) -> str:
    """One request in plain Python."""
    data = json.dumps(body(*messages, **more)).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", data)) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def played(function: Callable[..., Any], engine: FakeEngine | None = None, **limits: Any) -> Trajectory:
    async def run() -> Trajectory:
        environment_class = own_agent(function, "mine")
        try:
            trajectory, images = await play(
                environment_class, TASK, ModelAgent(engine or FakeEngine()),
                id="t#0", seed=1, limits=LimitsConfig(**limits),
            )  # fmt: skip
        finally:
            await shut_down(environment_class)
        assert images == [] and environment_class.endpoint is None
        return trajectory

    return asyncio.run(run())


def test_a_plain_function_plays_over_its_base_url():
    def agent(task: Task, base_url: str) -> dict[str, Any]:
        first = ask(base_url, user(task.data["question"]))
        ask(base_url, user(task.data["question"]), {"role": "assistant", "content": first}, user("two"))
        return {"reward": 0.5, "success": True, "speed": 2}

    trajectory = played(agent)
    assert trajectory.id == "t#0" and trajectory.task == TASK
    assert [message.content for message in trajectory.messages] == ["one", "reply 1", "two", "reply 2"]
    assert trajectory.rewards == {"outcome": 0.5, "speed": 2.0} and trajectory.success is True
    assert trajectory.stop == "done" and trajectory.info["agent"] == "fake"
    assert all(turn.call is not None and turn.call.logprobs for turn in trajectory.turns)


def test_sub_agents_of_a_coroutine_are_kept_apart():
    async def agent(base_url: str) -> bool:
        replies = await asyncio.gather(*(asyncio.to_thread(ask, base_url, user(question)) for question in "abc"))
        return sorted(replies) == ["to a", "to b", "to c"]

    trajectory = played(agent, FakeEngine(say=lambda messages: f"to {messages[0].content}"))
    assert trajectory.success is True and trajectory.rewards == {"outcome": 1.0}
    assert [turn.prompt is None for turn in trajectory.turns].count(True) == 1
    asked = {turn.reply.content: turn.prompt or trajectory.start for turn in trajectory.turns}
    assert {reply: messages[0].content for reply, messages in asked.items()} == {"to a": "a", "to b": "b", "to c": "c"}


def test_an_exception_in_the_agent_says_where_and_is_not_the_models_failure():
    def agent(base_url: str) -> None:
        ask(base_url, user("x"))
        raise KeyError("my own bug")

    with pytest.raises(EnvironmentFailedError, match=r"agent:mine raised KeyError: 'my own bug'.*test_own_agent.py"):
        played(agent)


@pytest.mark.parametrize(
    "result", ["yes", float("nan"), [1], {"success": 1}, {"reward": "much"}, pytest.param(10**400, id="huge"), object()]
)
def test_a_result_that_is_none_is_the_agents_fault(result: Any):
    with pytest.raises(EnvironmentFailedError, match="returned"):
        read_result("mine", result)
    with pytest.raises(EnvironmentFailedError, match="the result of agent:mine raised RuntimeError: a Tensor with 2"):
        read_result("agent:mine", {"reward": Tensor()})


class Tensor:
    """One of two elements, of which torch says that it is no number."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_that_is_cancelled_by_itself_is_lost_and_not_forgotten(is_async: bool):
    def gives_up(base_url: str) -> None:
        raise asyncio.CancelledError

    async def gives_up_later(base_url: str) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    with pytest.raises(EnvironmentFailedError, match="agent:mine raised CancelledError"):
        played(gives_up_later if is_async else gives_up)


def test_results_are_rewards_successes_mappings_or_unknown():
    assert read_result("mine", None) == SessionOutcome(None, {"outcome": None})
    assert read_result("mine", False) == SessionOutcome(False, {"outcome": 0.0})
    assert read_result("mine", 2) == SessionOutcome(None, {"outcome": 2.0})
    assert read_result("mine", {"success": True}) == SessionOutcome(True, {"outcome": 1.0})
    assert read_result("mine", {}, "max_turns") == SessionOutcome(None, {"outcome": None}, "max_turns")


def failing(error: Exception) -> FakeEngine:
    def say(_: Any) -> str:
        raise error

    return FakeEngine(say=say)


def test_a_failing_engine_is_the_engines_fault_whatever_the_agent_does():
    def agent(base_url: str) -> bool:
        with pytest.raises(urllib.request.HTTPError):
            ask(base_url, user("x"))
        return True

    with pytest.raises(EngineError, match="the engine is gone"):
        played(agent, failing(EngineError("the engine is gone")))
    with pytest.raises(EngineError, match="the engine is gone"):
        played(lambda base_url: ask(base_url, user("x")), failing(EngineError("the engine is gone")))


def test_a_full_context_that_ends_the_agent_is_a_failure_with_its_reason():
    replies = iter(["fine", ContextFullError("too long")])

    def say(_: Any) -> str:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def agent(base_url: str) -> bool:
        return bool(ask(base_url, user("one")) and ask(base_url, user("two")))

    trajectory = played(agent, FakeEngine(say=say))
    assert (trajectory.stop, trajectory.success, trajectory.rewards) == ("context_full", False, {"outcome": 0.0})


def test_more_requests_than_turns_end_the_episode():
    def agent(base_url: str) -> None:
        while True:
            ask(base_url, user("on"))

    trajectory = played(agent, max_turns=3)
    assert (trajectory.stop, trajectory.success, len(trajectory.turns)) == ("max_turns", False, 3)


def test_an_agent_that_takes_a_refusal_well_has_the_last_word():
    def agent(base_url: str) -> bool:
        ask(base_url, user("on"))
        with pytest.raises(urllib.request.HTTPError, match="400"):
            ask(base_url, user("on"))
        return True

    trajectory = played(agent, max_turns=1)
    assert (trajectory.stop, trajectory.success) == ("max_turns", True)


def test_an_agent_that_makes_no_request_has_a_fault():
    with pytest.raises(EnvironmentFailedError, match="agent:mine made no request to its base_url"):
        played(lambda base_url: True)


def test_an_agent_whose_first_request_is_refused_is_told_why():
    def say(_: Any) -> str:
        raise ContextFullError("the conversation has 9000 tokens")

    def agent(base_url: str) -> bool:
        return bool(ask(base_url, user("one")))

    with pytest.raises(EnvironmentFailedError, match=r"got no reply .* refused: the conversation has 9000 tokens"):
        played(agent, FakeEngine(say=say))

    def careless(base_url: str) -> bool:
        with pytest.raises(urllib.request.HTTPError, match="400"):
            ask(base_url, user("one"), logit_bias={"7": 1})
        return True

    with pytest.raises(EnvironmentFailedError, match="refused: logit_bias is not supported by this server"):
        played(careless)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_that_hangs_is_given_up(is_async: bool):
    stopped = threading.Event()

    def blocks(base_url: str) -> None:
        stopped.wait(60)

    async def waits(base_url: str) -> None:
        await asyncio.sleep(60)

    with pytest.raises(EnvironmentFailedError, match=r"made no request for 0\.05 s and did not end"):
        played(waits if is_async else blocks, step_timeout_s=0.05)
    stopped.set()


def test_a_time_limit_ends_the_episode_as_a_failure(monkeypatch: pytest.MonkeyPatch):
    class Slow:
        """A thread in which everything takes too long."""

        async def run(self, work: Callable[[], Any], timeout_s: float) -> Any:
            assert timeout_s == 7
            await work()
            raise TimeoutError

        def leave(self) -> None:
            return

    monkeypatch.setattr(own_agent_module, "take_thread", Slow)
    trajectory = played(lambda base_url: bool(ask(base_url, user("one"))), episode_timeout_s=7)
    assert (trajectory.stop, trajectory.success, len(trajectory.turns)) == ("episode_timeout", False, 1)


def test_many_episodes_at_a_time_share_one_endpoint_and_faults_are_retried():
    tries: dict[str, int] = {}

    def agent(task: Task, base_url: str) -> float:
        tries[task.id] = tries.get(task.id, 0) + 1
        if task.id == "2" and tries[task.id] == 1:
            raise OSError("a passing fault")
        if task.id == "3":
            raise OSError("broken for good")
        return float(ask(base_url, user(task.id)).removeprefix("to "))

    async def run() -> tuple[Tally, list[Trajectory]]:
        environment_class, records = own_agent(agent, "mine"), list[Trajectory]()
        wanted = [Attempt(f"{n}#0", Task(id=str(n)), n) for n in range(20)]
        engine = FakeEngine(say=lambda messages: f"to {messages[0].content}")
        try:
            tally = await collect(
                LocalRunner.of(environment_class, ModelAgent(engine), LimitsConfig()), wanted,
                lambda record, _: records.append(record), concurrency=10, retries=1,
            )  # fmt: skip
        finally:
            await shut_down(environment_class)
        return tally, records

    tally, records = asyncio.run(run())
    assert sorted(int(record.rewards["outcome"] or 0) for record in records) == [n for n in range(20) if n != 3]
    assert list(tally.lost) == ["3#0"] and "broken for good" in tally.lost["3#0"]
    assert [record.info["retries"] for record in records if record.id == "2#0"] == [1] and tries["3"] == 4
