import json

import pytest
from hypothesis import given, settings

from bough.data import trl
from bough.data.trl import matches_openai as matches
from bough.data.trl import read_openai as read
from bough.data.trl import write_openai as write
from bough.errors import RowError
from bough.types import Message, Task, ToolCall, Trajectory, Turn
from tests.data.records import trajectories
from tests.data.samples import rows


def test_calls_with_json_text_are_read():
    trajectory = read(rows("openai_tools")[0])
    reply = trajectory.turns[0].reply
    assert reply.content == ""
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [
        ("call_1", {"city": "Paris"}),
        ("call_2", {"city": "Oslo"}),
    ]
    assert [message.tool_call_id for message in trajectory.turns[0].observation] == ["call_1", "call_2"]
    assert trajectory.info == {"parallel_tool_calls": True}
    parts = read(rows("openai_tools")[1])
    assert [message.content for message in parts.start] == ["Be brief.", "Run the tests, please."]
    assert [turn.trained for turn in parts.turns] == [False, True, True]


def test_the_arguments_tell_it_from_trl_and_both_read_both():
    for row in rows("openai_tools"):
        assert matches(row)
        assert trl.read(row) == read(row)
        assert not matches(trl.write(read(row)))
    for row in rows("trl_messages"):
        assert not matches(row)
        assert trl.read(row) == read(row)


def test_a_preference_is_a_pair():
    cold, tool = map(read, rows("openai_preference"))
    assert cold.start == [Message(role="user", content="Hello, can you tell me how cold San Francisco is today?")]
    assert cold.chosen[0].reply.content.startswith("Today")
    assert tool.chosen[0].reply.tool_calls[0].arguments == {"city": "Oslo"}
    assert tool.tools[0]["function"]["name"] == "get_weather"


def test_only_what_openai_knows_is_written():
    turn = Turn(reply=Message(role="assistant", content="Hi"), action="hi", reward=1.0)
    record = Trajectory(
        id="a",
        task=Task(id="t", environment="e"),
        start=[Message(role="user", content="Say hi")],
        turns=[turn],
        rewards={"outcome": 1.0},
        success=True,
        info={"engine": "local"},
    )
    assert write(record) == {
        "messages": [{"role": "user", "content": "Say hi"}, {"role": "assistant", "content": "Hi"}]
    }


def test_calls_without_ids_get_some_that_match_their_results():
    calls = [ToolCall(name="f", arguments={"x": 1}), ToolCall(name="g")]
    said = [Message(role="tool", content="1"), Message(role="tool", content="2")]
    turns = [
        Turn(reply=Message(role="assistant", tool_calls=calls), observation=said, trained=False),
        Turn(reply=Message(role="assistant", content="Done.")),
    ]
    record = Trajectory(id="a", task=Task(id="t"), start=[Message(role="user", content="Go")], turns=turns)
    _, use, one, two, _ = write(record)["messages"]
    assert [call["id"] for call in use["tool_calls"]] == [one["tool_call_id"], two["tool_call_id"]]
    assert use["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert use["weight"] == 0


@pytest.mark.parametrize("said", [{"reasoning": "Hm."}, {"hint": "Commands: look"}])
def test_what_openai_cannot_express_is_refused(said: dict):
    reply = Message(role="assistant", content="Hi", **said)
    record = Trajectory(
        id="a", task=Task(id="t"), start=[Message(role="user", content="Hi")], turns=[Turn(reply=reply)]
    )
    with pytest.raises(RowError, match=f"openai cannot express .*{next(iter(said))} of this record"):
        write(record)


@given(record=trajectories)
@settings(max_examples=60, deadline=None)
def test_a_written_conversation_is_read_as_the_same(record: Trajectory):
    if any(message.reasoning is not None for message in record.messages):
        with pytest.raises(RowError, match="openai cannot express"):
            write(record)
        return
    row = json.loads(json.dumps(write(record)))
    again = read(row)
    assert [(m.role, m.content) for m in again.messages] == [(m.role, m.content) for m in record.messages]
    assert again.tools == record.tools
