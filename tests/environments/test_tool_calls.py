"""Tools from plain methods as a user writes them: no marks, a text as the start, `success` as the judge."""

import asyncio
import threading
from typing import Any

import pytest

import bough
from bough.chat import tool_calls
from bough.environments.base import MAX_TEXT, Observation
from bough.environments.tools import ToolEnvironment, ToolError
from bough.types import Message, Task, ToolCall
from tests.environments.adapters import playing
from tests.environments.adapters.playing import ScriptedAgent, collected

released = threading.Event()


class Shop(bough.ToolEnvironment):
    """Buy three apples."""

    max_turns = 4
    tool_timeout_s = 0.5

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.basket: dict[str, int] = {}

    async def start(self) -> str:
        return "Buy three apples for at most 2 €."

    def price(self, item: str) -> float:
        """Price of one item in euros."""
        return {"apple": 0.5}[item]

    async def buy(self, item: str, count: int) -> str:
        """Buys items."""
        self.basket[item] = self._bought(item) + count
        return f"{count} {item}"

    async def order(self) -> str:
        """Waits for a delivery that never comes."""
        await asyncio.Event().wait()
        return "unreachable"

    def fetch(self) -> str:
        """Asks a server that does not answer."""
        raise RuntimeError("no answer") from TimeoutError("timed out")

    def block(self) -> str:
        """Blocks its thread."""
        released.wait(30)
        return "free"

    def success(self) -> bool:
        return self._bought("apple") == 3

    def _bought(self, item: str) -> int:
        return self.basket.get(item, 0)


class Patient(Shop):
    async def success(self) -> bool:  # type: ignore[override]
        await asyncio.sleep(0)
        return self._bought("apple") == 3


def call(name: str, **arguments: Any) -> str:
    return tool_calls.call_text(ToolCall(name=name, arguments=arguments))


def played(*replies: str, environment_class: type[ToolEnvironment] = Shop, timeout_s: float = 60) -> list[Observation]:
    return playing.played(environment_class, Task(id="t"), *replies, timeout_s=timeout_s)


def test_public_methods_are_the_tools_and_a_text_is_the_start():
    [start] = played()
    assert start.messages == (Message(role="user", content="Buy three apples for at most 2 €."),)
    tools = {one["function"]["name"]: one["function"] for one in start.tools}
    assert list(tools) == ["price", "buy", "order", "fetch", "block"]
    assert tools["buy"]["parameters"]["properties"]["count"] == {"type": "integer"}


@pytest.mark.parametrize("environment_class", [Shop, Patient])
def test_the_episode_ends_as_soon_as_success_is_true(environment_class: type[ToolEnvironment]):
    seen = played(
        call("buy", item="apple", count=1), call("buy", item="apple", count=2), environment_class=environment_class
    )
    assert [one.done for one in seen] == [False, False, True] and seen[-1].success and seen[-1].text == "2 apple"


def test_a_reply_without_a_call_ends_the_episode():
    *_, last = played(call("buy", item="apple", count=2), "Done.")
    assert last.terminated and last.success is False


def test_json_in_a_block_is_carried_out_and_counted_as_malformed():
    buy = '{"name": "buy", "arguments": {"item": "apple", "count": 3}}'
    seen = played(f"```json\n{buy}\n```")
    assert seen[1].success and seen[1].error == "malformed"
    assert seen[1].action == call("buy", item="apple", count=3), "the same action as the well-formed call"
    assert seen[1].text == "3 apple\n(The call was not inside <tool_call></tool_call>. Write it there.)"
    assert played('```json\n{"name": "buy", "arguments": {"item": 3}}\n```')[1].error == "tool_misuse"
    tally, _ = collected(Shop, [Task(id="t")], ScriptedAgent(f"```json\n{buy.replace('3', '1')}\n```"))
    assert tally.successes == 1 and tally.errors == {"malformed": 3}


def test_an_error_as_long_as_a_log_is_shortened_and_the_episode_kept():
    class Verbose(Shop):
        def build(self) -> str:
            """Fails with its whole log."""
            raise ToolError("x\ud800" * MAX_TEXT)

    [seen] = played(call("build") + call("build"), environment_class=Verbose)[1:]
    assert seen.error == "invalid_action" and len(seen.text) < 0.6 * MAX_TEXT
    assert [message.content[-19:] for message in seen.messages] == ["characters left out"] * 2


def test_a_tool_that_takes_too_long_is_told_and_the_episode_continues():
    _, late, unanswered, won = played(call("order"), call("fetch"), call("buy", item="apple", count=3))
    assert late.text == "Error: order took longer than 0.5 s." and late.error is None
    assert unanswered.text == "Error: fetch raised RuntimeError: no answer" and unanswered.error is None
    assert won.success


def test_all_calls_of_a_reply_share_the_time_of_a_step():
    class Slow(Shop):
        tool_timeout_s = None

    seen = played("\n".join([call("order")] * 2), environment_class=Slow, timeout_s=10)
    assert [message.content.startswith("Error: order took longer than") for message in seen[1].messages] == [True, True]
    assert "than 8 s" in seen[1].messages[0].content


def test_a_tool_that_blocks_ends_its_episode_which_is_kept():
    released.clear()
    script = ScriptedAgent(call("buy", item="apple", count=1), call("block"))
    tally, kept = collected(Shop, [Task(id="a"), Task(id="b")], script, step_timeout_s=3)
    released.set()
    assert tally.stops == {"tool_timeout": 2} and tally.lost == {} and not tally.faults
    assert all(one.success is False and len(one.turns) == 2 for one in kept.values())


def test_a_tool_cannot_hide_what_authors_call():
    with pytest.raises(TypeError, match=r"tool Phone\.call: every environment has call; choose another name"):

        class Phone(ToolEnvironment):
            def start(self) -> str:
                return "Hello."

            def call(self, number: str) -> str:  # type: ignore[override]
                """Calls a number."""
                return number


def test_marked_methods_are_the_only_tools():
    class Marked(ToolEnvironment):
        def start(self) -> str:
            return "Hello."

        @bough.tool
        def ask(self) -> str:
            """Asks."""
            return self.helper()

        def helper(self) -> str:
            return "yes"

    assert list(Marked.schemas) == ["ask"]
