import gzip
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bough.chat import tool_calls
from bough.environments.base import EnvironmentFailedError
from bough.environments.registry import find
from bough.errors import InputError
from bough.types import Task, ToolCall
from tests.environments.adapters.playing import ScriptedAgent, collected, played
from tests.later import Later

for package in ("mcp", "uvicorn"):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
uvicorn = Later("uvicorn")
mcp_client = Later("bough.environments.adapters.mcp")
mcp_server = Later("tests.environments.adapters.mcp_server")

STDIO = f"mcp:{sys.executable} {Path(__file__).with_name('mcp_server.py')}"
ASK = {"instructions": "What do three apples cost?", "check": {"answer": 1.5}}
SELL = {
    "instructions": "Sell a pear.",
    "check": {"state": {"tool": "stock", "arguments": {"item": "pear"}, "equals": 0}},
}


def call(name: str, **arguments: Any) -> str:
    return tool_calls.call_text(ToolCall(name=name, arguments=arguments))


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
        ("true", True, True), ("-3", 3, False), ("nan", "x", False), ("a", "a\nb", False), ("Is\na\n\nb", "a\nb", True),
        ("−5", 5, False), ("−5", -5, True), (".5", 5, False), (".5", 0.5, True), ("√4", 4, False), ("5!", 5, False),
        ("1,5", 15, False), ("$1,234.50", 1234.5, True), ("C", "C++", False), ("**C++.**", "C++", True),
        ("7", "007", False), ("007", "007", True), ("007", 7, True), ("0.50", "0.5", True), ("1e3", 1000, True),
        ("9007199254740993", 9007199254740992, False), ("9007199254740993.0", "9,007,199,254,740,993", True),
        ("inf", "1e999", False), ("1_000", 1000, False), ("٣", 3, False), ("1e999999999", 1, False), ("5.", 5.0, True),
        ("0.33333333333333333333", 1 / 3, True),
    ],
)  # fmt: skip
def test_answers_are_compared_as_numbers_or_words(said: str, expected: Any, same: bool):
    assert mcp_client.same_answer(said, expected) is same


def test_a_state_that_does_not_hold_is_a_failure(url: str, caplog: pytest.LogCaptureFixture):
    """One that cannot be read, too: the agent may have broken it."""
    assert played(find(url), task(SELL), "Done.")[-1].success is False
    removed = {"tool": "stock", "arguments": {"item": "plum"}, "equals": 0}
    assert played(find(url), task({"instructions": "?", "check": {"state": removed}}), "Done.")[-1].success is False
    assert "the check by stock is an error, which counts as failed" in caplog.text


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


def test_a_server_that_dies_is_its_own_failure_with_its_last_words():
    tally, kept = collected(find(STDIO), [task(ASK)], ScriptedAgent(call("crash")))
    assert tally.faults == {"environment": 1} and not kept
    assert tally.lost["t#0"].startswith("the MCP server failed at crash: ") and "shop is open" in tally.lost["t#0"]


def test_a_server_that_does_not_speak_the_protocol_is_given_up(caplog: pytest.LogCaptureFixture):
    nonsense = find(f"mcp:{sys.executable} -c \"print('this is not JSON', flush=True); input()\"")
    with pytest.raises(EnvironmentFailedError, match="the MCP server cannot be reached: "):
        played(nonsense, task(ASK))
    assert [record.name for record in caplog.records if record.name.startswith("mcp")] == [], "only our error is shown"


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
        ({"instructions": "?", "check": {}}, "needs an answer, a state or a judge"),
        ({"instructions": "?", "check": {"anser": 1}}, "did you mean answer?"),
        ({"instructions": "?", "check": {"state": {"tool": "stok", "equals": 0}}}, "the server has no tool 'stok'"),
        ({"instructions": "?", "check": {"state": {"tool": "stock", "equals": 0}}}, "stock without item"),
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


class Raw(BaseHTTPRequestHandler):
    """An MCP server by hand. `answer` gives the body of the answer to a call by its id, and has the headers."""

    protocol_version = "HTTP/1.1"
    answer: tuple[Any, dict[str, str]] = None, {}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
        "tools/list": {
            "tools": [
                {
                    "name": "look",
                    "inputSchema": {"type": "object"},
                    "outputSchema": {"type": "object", "required": ["x"]},
                }
            ]
        },
        "tools/call": {"content": [{"type": "text", "text": "a view"}], "structuredContent": {}},
    }

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {"content-type": "application/json"}
        if asked.get("method") == "tools/call" and self.answer[0]:
            body, more = self.answer[0](asked["id"]), self.answer[1]
            headers |= more
        elif (result := self.results.get(asked.get("method"))) is not None:
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        else:
            error = {"code": -32601, "message": "no such method"}
            body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "error": error}).encode()
        self.send_response(202 if "id" not in asked else 200)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def raw() -> Iterator[str]:
    Raw.answer = None, {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Raw) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"mcp:http://127.0.0.1:{listening.server_port}/mcp"
        listening.shutdown()


def test_a_result_is_not_matched_with_the_patterns_of_its_server(raw: str):
    _, seen = played(find(raw), task(ASK), call("look"))
    assert (seen.messages[0].content, seen.error) == ("a view", None)


def test_an_answer_without_an_end_is_not_read(raw: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.environments.adapters.mcp.MAX_BYTES", 1 << 20)
    Raw.answer = lambda _: b" " * (2 << 20), {}
    with pytest.raises(EnvironmentFailedError, match=r"failed at look: .*the answer is larger than 1 MiB"):
        played(find(raw), task(ASK), call("look"))


def test_a_packed_answer_is_not_unpacked(raw: str):
    answer = {
        "jsonrpc": "2.0",
        "result": {"content": [{"type": "text", "text": "a view"}], "structuredContent": {"x": 1}},
    }
    Raw.answer = lambda id: gzip.compress(json.dumps({**answer, "id": id}).encode()), {"content-encoding": "gzip"}
    with pytest.raises(EnvironmentFailedError, match="the MCP server failed at look: "):
        played(find(raw), task(ASK), call("look"))
