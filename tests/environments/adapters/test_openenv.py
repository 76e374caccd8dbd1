from collections.abc import Iterator
from typing import Any

import pytest

from bough.chat import tool_calls
from bough.environments.base import EnvironmentFailedError
from bough.environments.registry import find
from bough.errors import InputError
from bough.types import Task, ToolCall
from tests.environments.adapters.playing import ScriptedAgent, collected, played, problems, some_tasks

pytest.importorskip("websockets", reason="websockets is not installed")
from bough.environments.adapters import openenv
from bough.environments.adapters.openenv import urls
from tests.environments.adapters.openenv_server import (
    DIES,
    GARBAGE,
    SILENT,
    STRANGE,
    OpenEnvServer,
    running,
)

TASK = Task(id="t", seed=7)


def call(name: str, **arguments: Any) -> str:
    return tool_calls.call_text(ToolCall(name=name, arguments=arguments))


@pytest.fixture
def guess() -> Iterator[str]:
    with running(OpenEnvServer("guess")) as name:
        yield name


@pytest.fixture
def shop() -> Iterator[str]:
    with running(OpenEnvServer("shop")) as name:
        yield name


def test_the_fields_of_an_action_are_the_parameters_of_act(guess: str):
    start, lower, wrong, won = played(
        find(guess), TASK, call("act", guess=50), call("act", guess="many"), call("act", guess=42)
    )
    assert start.text == "hint: I picked a number from 1 to 100.\nremaining: 10"
    [tool] = start.tools
    assert tool["function"]["name"] == "act" and tool["function"]["description"] == "A guess."
    assert list(tool["function"]["parameters"]["properties"]) == ["guess"], "metadata is not the agent's business"
    assert lower.text == "hint: Lower.\nremaining: 9" and lower.reward == 0.0 and not lower.done
    assert wrong.error == "tool_misuse" and "guess: Input should be a valid integer" in wrong.text
    assert won.terminated and won.success is True and won.reward == 1.0


def test_an_environment_of_the_mcp_kind_offers_its_tools(shop: str):
    start, price, refused, unknown, won = played(
        find(shop),
        TASK,
        call("price", item="apple"),
        call("price", item="plum"),
        call("steal"),
        call("buy", item="apple", count=3),
    )
    assert start.text == "Buy three apples." and [one["function"]["name"] for one in start.tools] == ["price", "buy"]
    assert price.text == "0.5" and price.error is None and price.reward is None
    assert refused.error == "invalid_action" and "Error calling tool 'price'" in refused.text
    assert unknown.error == "tool_misuse"
    assert won.terminated and won.success and won.reward == 1.0


def test_an_action_of_one_text_is_the_reply_itself():
    schema = {"action": {"properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}}}
    echoed = {"type": "observation", "data": {"observation": {"echo": "hi"}, "reward": 0.1, "done": False}}
    ended = {
        "type": "observation",
        "data": {"observation": {"metadata": {"success": False}}, "reward": 1, "done": True},
    }
    refused = {"type": "error", "data": {"message": "Invalid", "code": "VALIDATION_ERROR"}}
    answers = [
        ({"type": "step", "data": {"message": said}}, answer)
        for said, answer in (("hi", echoed), ("bye", ended), ("", refused))
    ]
    with running(OpenEnvServer("guess", schema=schema, answers=answers)) as name:
        start, first, invalid, last = played(find(name), TASK, "<think>?</think> hi", "", "bye")
    assert start.tools == () and (first.text, first.reward, first.done) == ("hi", 0.1, False)
    assert invalid.error == "malformed"
    assert last.terminated and last.success is False, "what the server says counts more than its reward"


def test_the_contract_is_kept(shop: str):
    assert problems(find(shop), some_tasks(find(shop), 1)) == []


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (DIES, "failed at step: ConnectionClosedError"),
        (GARBAGE, "answered step with '<html>502 Bad Gateway</html>'"),
        (STRANGE, "answered step with "),
        (13, "failed at step: EXECUTION_ERROR: thirteen breaks this server"),
    ],
)
def test_a_server_that_fails_is_not_held_against_the_agent_and_stops_nothing(guess: str, number: int, why: str):
    replies = iter([call("act", guess=number), call("act", guess=42)])

    class OnceBroken(ScriptedAgent):
        def enter(self, environment: Any, **_: Any) -> Any:
            return ScriptedAgent(next(replies)).enter(environment, episode="", seed=0)

    tasks = some_tasks(find(guess))
    tally, kept = collected(find(guess), tasks, OnceBroken(), concurrency=1)
    assert tally.faults == {"environment": 1} and why in tally.lost[f"{tasks[0].id}#0"]
    assert [one.success for one in kept.values()] == [True]


@pytest.mark.parametrize(
    ("data", "won"),
    [
        ({"reward": 1, "done": True}, True),
        ({"reward": True, "done": True}, True),
        ({"reward": 1, "done": "false"}, None),
        ({"reward": 1, "done": [0]}, None),
        ({"reward": 1, "done": 1}, None),
        ({"reward": "1", "done": True}, None),
        ({"reward": [1], "done": True}, None),
        ({"reward": 10**400, "done": True}, None),
        ({"reward": float("nan"), "done": True}, None),
    ],
)
def test_an_end_is_true_or_false_and_a_reward_is_a_number(data: dict[str, Any], won: bool | None):
    answer = {"type": "observation", "data": {"observation": {"text": "?"}, **data}}
    with running(OpenEnvServer("guess", answers=[({"type": "step", "data": {"guess": 1}}, answer)])) as name:
        if won:
            assert played(find(name), TASK, call("act", guess=1))[-1].success is True
            return
        with pytest.raises(EnvironmentFailedError, match="answered step with"):
            played(find(name), TASK, call("act", guess=1))


def test_an_episode_that_is_over_before_it_began_is_the_servers_failure():
    over = {"type": "observation", "data": {"observation": {"text": "?"}, "reward": 1.0, "done": True}}
    with running(OpenEnvServer("guess", answers=[({"type": "reset", "data": {}}, over)])) as name:
        tally, kept = collected(find(name), some_tasks(find(name), 1), ScriptedAgent(call("act", guess=42)))
    assert not kept and "ended the episode before the agent's first action" in next(iter(tally.lost.values()))


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": 3, "input_schema": {}}],
        [{"name": "", "input_schema": {}}],
        [{"name": "a", "description": ["x"], "input_schema": {}}],
        [{"name": "a", "input_schema": None}],
        [{"name": "a", "input_schema": "object"}],
        [{"name": "a", "input_schema": {}}] * 2,
    ],
)
def test_a_tool_that_cannot_be_offered_is_the_servers_failure(tools: list[Any]):
    listed = {"type": "observation", "data": {"observation": {"tools": tools}}}
    server = OpenEnvServer("shop", answers=[({"type": "step", "data": {"type": "list_tools"}}, listed)])
    with running(server) as name, pytest.raises(EnvironmentFailedError, match="the server offers the tool "):
        played(find(name), TASK)


@pytest.mark.parametrize("action", [{"properties": [1]}, {"properties": {"a": "text"}}, {"required": 3}, [], None])
def test_a_schema_that_is_none_is_the_servers_failure(action: Any):
    why = "describes its actions by something that is not a schema"
    with (
        running(OpenEnvServer("guess", schema={"action": action})) as name,
        pytest.raises(EnvironmentFailedError, match=why),
    ):
        played(find(name), TASK)


def test_a_schema_without_an_end_is_not_read(guess: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openenv, "MAX_SCHEMA", 100)
    with pytest.raises(EnvironmentFailedError, match="does not describe its actions: ValueError: /schema is larger"):
        played(find(guess), TASK)


def test_a_slow_server_is_not_held_against_the_agent(guess: str):
    with pytest.raises(EnvironmentFailedError, match=r"the server took longer than 3\.2 s to answer act"):
        played(find(guess), TASK, call("act", guess=SILENT), timeout_s=4)


def test_a_server_that_is_full_is_said():
    server = OpenEnvServer("guess", capacity=0)
    why = r"is full; give it more sessions, or lower --concurrency \(Server at capacity: 4/4"
    with running(server) as name, pytest.raises(EnvironmentFailedError, match=why):
        played(find(name), TASK)


def test_a_server_that_is_not_there_is_said():
    with pytest.raises(EnvironmentFailedError, match=r"at http://127\.0\.0\.1:9 does not describe its actions"):
        played(find("openenv:127.0.0.1:9"), TASK)
    with pytest.raises(InputError, match="must begin with http://"):
        find("openenv:ftp://host")


@pytest.mark.parametrize(
    ("url", "both"),
    [
        ("http://host:8000/", ("http://host:8000", "ws://host:8000/ws")),
        ("wss://host/path", ("https://host/path", "wss://host/path/ws")),
        ("host:8000", ("http://host:8000", "ws://host:8000/ws")),
    ],
)
def test_one_address_serves_for_both_protocols(url: str, both: tuple[str, str]):
    assert urls(url) == both
