import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bough.environments.base import EnvironmentFailedError
from bough.environments.registry import find
from bough.errors import InputError
from bough.speech import hermes
from bough.types import Task, ToolCall
from tests.environments.adapters.playing import ScriptedAgent, collected, played, problems
from tests.later import Later

for package in ("mcp", "uvicorn"):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
uvicorn = Later("uvicorn")
mcp_client = Later("bough.environments.adapters.mcp_client")
mcp_task = Later("bough.environments.adapters.mcp_task")
mcp_server = Later("tests.environments.adapters.mcp_server")

STDIO = f"mcp:{sys.executable} {Path(__file__).with_name('mcp_server.py')}"
ASK = {"instructions": "What do three apples cost?", "check": {"answer": 1.5}}
SELL = {
    "instructions": "Sell a pear.",
    "check": {"state": {"tool": "stock", "arguments": {"item": "pear"}, "equals": 0}},
}


def call(name: str, **arguments: Any) -> str:
    return hermes.call_text(ToolCall(name=name, arguments=arguments))


def task(data: dict[str, Any], **more: Any) -> Task:
    return Task(id=more.pop("id", "t"), data={**data, **more})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server over streamable HTTP, in this process."""
    config = uvicorn.Config(mcp_server.shop().streamable_http_app(), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"mcp:http://127.0.0.1:{port}/mcp"
    server.should_exit = True
    thread.join(10)


def test_a_command_is_started_for_the_episode_and_its_state_is_checked():
    start, refused, sold, ended = played(
        find(STDIO), task(SELL), call("price", item="plum"), call("sell", item="pear"), "Done."
    )
    assert start.messages[0].content == "You work in a shop.\n\nWhen you are done, reply without a tool call."
    assert start.messages[1].content == "Sell a pear."
    assert [tool["function"]["name"] for tool in start.tools][:3] == ["price", "sell", "stock"]
    assert start.tools[1]["function"]["parameters"]["required"] == ["item"]
    assert refused.error == "invalid_action" and refused.text.startswith("Error: Error executing tool price")
    assert sold.text == "sold 1 pear" and sold.error is None
    assert ended.terminated and ended.success is True


@pytest.mark.parametrize(
    ("replies", "success"),
    [
        ([call("price", item="apple"), "Each is 0.5.\n**1.50 €**."], True),
        (["1.5\nor so"], False),
        (["It is more than 1"], False),
        ([""], False),
    ],
)
def test_an_answer_is_the_last_line_of_the_final_reply(url: str, replies: list[str], success: bool):
    *_, ended = played(find(url), task(ASK), *replies)
    assert ended.terminated and ended.success is success


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ("1,500", 1500, True), ("The Hague.", "the  hague", True), ("Paris", "Rome", False), ("", "", False),
        ("true", True, True), ("-3", 3, False), ("nan", "x", False),
    ],
)  # fmt: skip
def test_answers_are_compared_as_numbers_or_words(said: str, expected: Any, same: bool):
    assert mcp_task.same_answer(said, expected) is same


def test_a_function_of_the_task_file_runs_in_the_sandbox(url: str):
    code = "def check(answer, calls):\n    return calls[0]['result'] == '0.5' and answer == 'half'"
    for answer, success in (("half", True), ("whole", False)):
        *_, ended = played(
            find(url), task({"instructions": "?", "check": {"python": code}}), call("price", item="apple"), answer
        )
        assert ended.success is success


def test_a_state_that_does_not_hold_is_a_failure(url: str):
    assert played(find(url), task(SELL), "Done.")[-1].success is False
    broken = {"instructions": "?", "check": {"state": [{"tool": "stock", "arguments": {}, "equals": 0}]}}
    with pytest.raises(EnvironmentFailedError, match="the check cannot call stock"):
        played(find(url), task(broken), "Done.")


def test_a_judge_leaves_success_unknown_unless_another_check_fails(url: str):
    rubric = {"instructions": "Say it.", "check": {"judge": "It is kind.", "answer": "hello"}}
    assert played(find(url), task(rubric), "hello")[-1].success is None
    assert played(find(url), task(rubric), "goodbye")[-1].success is False


def test_invalid_arguments_and_unknown_tools_are_answered_and_counted(url: str):
    _, wrong, unknown, hidden = played(
        find(url), task(ASK, tools=["price"]), call("price", thing=1), call("steal"), call("sell", item="pear")
    )
    assert wrong.error == "invalid_action" and "item" in wrong.text
    assert unknown.error == "tool_misuse" and "the tools are price." in unknown.text
    assert hidden.error == "tool_misuse", "the task offers one tool only"


def test_the_contract_is_kept(url: str):
    assert problems(find(url), [task(ASK)]) == []


def test_a_server_that_dies_is_its_own_failure_with_its_last_words():
    tally, kept = collected(find(STDIO), [task(ASK)], ScriptedAgent(call("crash")))
    assert tally.faults == {"environment": 1} and not kept
    assert tally.lost["t#0"].startswith("the MCP server failed at crash: ") and "shop is open" in tally.lost["t#0"]


def test_a_server_that_does_not_speak_the_protocol_is_given_up():
    nonsense = find(f"mcp:{sys.executable} -c \"print('this is not JSON', flush=True); input()\"")
    with pytest.raises(EnvironmentFailedError, match="the MCP server cannot be reached: "):
        played(nonsense, task(ASK))


def test_a_server_that_lists_tools_for_ever_is_given_up():
    class Endless:
        async def list_tools(self, cursor: str | None) -> Any:
            return SimpleNamespace(tools=[], next_cursor=f"{cursor}"[:3])

    async def listed() -> None:
        connection = mcp_client.McpConnection("python")
        connection._client = cast(Any, Endless())
        connection._holder = cast(Any, asyncio.get_running_loop().create_future())
        await connection.tools()

    with pytest.raises(EnvironmentFailedError, match="does not list its tools: ValueError: it has more than 10,000"):
        asyncio.run(listed())


def test_a_slow_server_is_not_held_against_the_agent(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOP_HANG_S", "12")
    with pytest.raises(EnvironmentFailedError, match=r"the server took longer than 8 s to answer hang"):
        played(find(url), task(ASK), call("hang"), timeout_s=10)


def test_a_server_that_is_not_there_is_said():
    with pytest.raises(EnvironmentFailedError, match="the MCP server cannot be reached"):
        played(find("mcp:http://127.0.0.1:9/mcp"), task(ASK))
    ended = find(f"mcp:{sys.executable} -c \"import sys; sys.exit('no such shop')\"")
    with pytest.raises(EnvironmentFailedError, match=r"cannot be reached: (.|\n)*no such shop"):
        played(ended, task(ASK))
    with pytest.raises(InputError, match="there is no command 'no-such-command'"):
        find("mcp:no-such-command --fast")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"check": {"answer": 1}}, "instructions"),
        ({"instructions": "?", "check": {}}, "needs an answer, a state, python or a judge"),
        ({"instructions": "?", "check": {"python": "def chek(): ..."}}, "must define a function check"),
        ({"instructions": "?", "check": {"python": "def check(:"}}, "is not Python"),
        ({"instructions": "?", "check": {"anser": 1}}, "did you mean answer?"),
    ],
)
def test_a_task_that_cannot_be_checked_stops_with_its_id(url: str, data: dict[str, Any], problem: str):
    with pytest.raises(InputError) as error:
        played(find(url), task(data, id="t7"))
    assert "t7" in str(error.value) and problem in str(error.value)


def test_a_call_can_be_typed_as_in_python(url: str):
    environment: Any = find(url)(task(ASK))
    environment.offer([("price", "", {"type": "object", "properties": {"item": {}, "day": {}}})])
    said = environment.say('price("apple", day="Monday")')
    assert json.loads(said.split("\n")[1])["arguments"] == {"item": "apple", "day": "Monday"}
    assert environment.say("1.5") == "1.5"
