from bough.formats import trl
from bough.formats.openai import matches, read
from bough.types import Message
from tests.formats.samples import rows


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


def test_parts_are_joined_and_weights_kept():
    trajectory = read(rows("openai_tools")[1])
    assert trajectory.start == [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Run the tests, please."),
    ]
    assert [turn.trained for turn in trajectory.turns] == [False, True, True]


def test_the_arguments_tell_it_from_trl_and_both_read_both():
    for row in rows("openai_tools"):
        assert matches(row)
        assert trl.read(row) == read(row)
        assert not matches(trl.write(read(row)))
    for row in rows("trl_messages"):
        assert not matches(row)
        assert trl.read(row) == read(row)
