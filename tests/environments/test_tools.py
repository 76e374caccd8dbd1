import asyncio
from pathlib import Path
from typing import Any

import pytest

from bough.chat import tool_calls
from bough.cli import main
from bough.environments.base import Observation
from bough.environments.tools import ToolEnvironment, ToolError, tool
from bough.errors import InputError
from bough.types import Message, Task, ToolCall
from tests.environments.adapters import playing

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_environment.py"


class Counter(ToolEnvironment):
    """Add numbers up to 5."""

    total = 0

    def start(self) -> Observation:
        return Observation.say("Get to 5.")

    @tool
    def add(self, number: int, times: int = 1) -> dict[str, int]:
        """Adds a number."""
        if number < 0:
            raise ToolError("only upwards.")
        self.total += number * times
        if self.total >= 5:
            self.end(success=self.total == 5, reward=1.0 if self.total == 5 else 0.0)
        return {"total": self.total}

    @tool
    async def reset(self) -> None:
        """Starts again from 0."""
        await asyncio.sleep(0)
        self.total = 0

    @tool
    def breaks(self) -> str:
        """Raises."""
        return {}["missing"]


class Answering(Counter):
    async def answer(self, text: str) -> Observation:
        return Observation.end(success=text == "5")


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def said(*calls: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=list(calls))


def played(*replies: Message | str, environment_class: type[ToolEnvironment] = Counter) -> list[Observation]:
    return playing.played(environment_class, Task(id="t"), *replies)


def test_calls_as_data_and_as_text_do_the_same():
    for reply in (said(call("add", number=2)), tool_calls.call_text(call("add", number=2))):
        observation = played(reply)[1]
        assert observation.messages == (Message(role="tool", name="add", content='{"total":2}'),)
        assert observation.error is None and not observation.done
        assert observation.action == tool_calls.call_text(call("add", number=2))


def test_several_calls_run_in_order_until_the_end():
    adding = call("add", number=2, times=2)
    observation = played(said(call("add", number=1), call("reset"), adding, call("add", number=1), call("reset")))[1]
    contents = [message.content for message in observation.messages]
    assert contents == ['{"total":1}', "Done.", '{"total":4}', '{"total":5}'], "nothing runs after the end"
    assert observation.terminated and observation.success and observation.reward == 1.0


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        (call("add"), "tool_misuse", "Error: add(number, times) was called with invalid arguments. number: Field req"),
        (call("add", number="2"), "tool_misuse", "number: Input should be a valid integer"),
        (call("add", number=2, by=3), "tool_misuse", "by: Extra inputs are not permitted"),
        (call("subtract"), "tool_misuse", "there is no tool 'subtract'; the tools are add, reset, breaks."),
        (call("add", number=-1), "invalid_action", "Error: only upwards."),
    ],
)
def test_a_wrong_call_is_answered_and_counted(wrong: ToolCall, error: str, complaint: str):
    observation = played(said(wrong))[1]
    assert observation.error == error and complaint in observation.messages[0].content
    assert not observation.done


@pytest.mark.parametrize("number", ["NaN", "1e999", "9" * 5000, '"\\ud800"'])
def test_what_an_agent_writes_is_its_mistake_and_not_the_environments(number: str):
    observation = played(f'<tool_call>{{"name": "add", "arguments": {{"number": {number}}}}}</tool_call>')[1]
    assert observation.error == "malformed" and "The tool call is not JSON" in observation.text


def test_the_answer_to_a_wrong_call_stays_short():
    long, many = call("x" * 100_000), call("add", **{"k" * 1000 + str(number): 1 for number in range(2000)})
    for wrong in (long, many):
        [message] = played(said(wrong))[1].messages
        assert len(message.content) < 5000 and message.name is not None and len(message.name) <= 80
    assert "; and 1991 more." in message.content


def test_a_reply_without_a_call_is_invalid_unless_the_author_takes_answers():
    observation = played("I am done.")[1]
    assert observation.error == "malformed" and "The tools are add, reset, breaks." in observation.text
    assert played("<tool_call>{")[1].error == "malformed"
    assert played("5", environment_class=Answering)[1].success


def test_experts_and_people_write_calls_of_tools_that_exist():
    with pytest.raises(InputError, match=r"Counter has no tool 'ad'; the tools are add, reset"):
        Counter(Task(id="t")).call("ad", number=1)
    assert Counter(Task(id="t")).call("add", number=1) == tool_calls.call_text(call("add", number=1))
    environment = Counter(Task(id="t"))
    assert environment.say("add(2, times=3)") == tool_calls.call_text(call("add", number=2, times=3))
    assert environment.say("five") == "five"


def test_the_example_keeps_the_contract_and_its_expert_wins(tmp_path: Path, capsys: Any):
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    assert main(["env", "check", f"{EXAMPLE}:Calendar", "--tasks", "3"]) == 0, capsys.readouterr().out
    words = ["--environment", f"{EXAMPLE}:Calendar", "--model", "expert", "--tasks", "4", "-o", str(tmp_path / "c")]
    assert main(["collect", *words]) == 0
    assert "4 episodes, success 100.0%" in capsys.readouterr().out
