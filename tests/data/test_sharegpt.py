import pytest

from bough.data.sharegpt import read, write
from bough.errors import RowError
from bough.types import Message, Task, ToolCall, Trajectory, Turn
from tests.data.samples import rows


def test_the_loss_of_a_reply_says_whether_it_is_trained():
    alfworld, webshop = map(read, rows("agentinstruct"))
    assert [turn.trained for turn in alfworld.turns] == [False, True, True]
    assert [turn.trained for turn in webshop.turns] == [True]
    assert alfworld.id == alfworld.task.id == "alfworld_0"


def test_a_system_column_is_the_first_message():
    inside, beside = map(read, rows("sharegpt"))
    assert inside.start[0] == Message(role="system", content="You are a helpful agent.")
    assert beside.start[0] == Message(role="system", content="你是一个家务助手。")
    assert [turn.reply.content for turn in beside.turns] == ["你好！我能帮你做什么？", "ACTION: open window 1"]


def test_function_calls_are_tool_calls_and_observations_their_results():
    trajectory = read(rows("sharegpt_tools")[0])
    assert trajectory.turns[0].reply.tool_calls == [ToolCall(name="get_weather", arguments={"city": "Bengaluru"})]
    assert trajectory.turns[0].observation == [Message(role="tool", content='{"temp_c": 27, "condition": "cloudy"}')]
    assert trajectory.tools[0]["function"]["name"] == "get_weather"
    [turn, _] = read(rows("sharegpt_tools")[1]).turns
    assert [call.arguments["city"] for call in turn.reply.tool_calls] == ["Paris", "Oslo"]
    assert [message.role for message in turn.observation] == ["tool", "tool"]
    unasked = read(rows("sharegpt_tools")[2]).turns[0].observation
    assert unasked == [Message(role="user", content="a.txt")], "it answers no call"


def test_chosen_and_rejected_make_a_pair():
    call, text = map(read, rows("sharegpt_preference"))
    assert call.chosen[0].reply.tool_calls == [ToolCall(name="plan")]
    assert call.rejected[0].reply.content == "No."
    assert [message.role for message in text.start] == ["user", "assistant", "user"]


HUMAN, GPT = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
BAD_REPLIES = [
    ({"from": "human", "value": "Hi"}, "unbalanced_roles", "no assistant message"),
    ({"from": "gpt", "value": ""}, "empty_completion", "message 1 (assistant) is empty"),
    ({**GPT, "loss": 0}, "wrong_type", 'conversations[1] "loss" is a whole number'),
    ({"from": "gpt"}, "missing_field", 'conversations[1] "value" is missing'),
    ({"from": "bard", "value": "x"}, "wrong_type", "conversations[1] \"from\" is 'bard'"),
    ({"from": "function_call", "value": "ls"}, "wrong_type", 'conversations[1] "value" is not JSON'),
    ({"from": "function_call", "value": "[]"}, "empty_completion", "message 1 (assistant) is empty"),
]


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        *(({"conversations": [HUMAN, reply]}, *why) for reply, *why in BAD_REPLIES),
        ({"conversations": [HUMAN, GPT, GPT]}, "unbalanced_roles", "message 2 (assistant) is after assistant"),
        ({"conversations": [{"from": "system", "value": "a"}, HUMAN], "system": "b"}, "unbalanced_roles", "message 1"),
        ({"conversations": [HUMAN], "chosen": GPT}, "missing_field", '"rejected" is missing'),
        ({"conversations": [HUMAN], "chosen": GPT, "rejected": GPT}, "same_reply", '"rejected" equals "chosen"'),
        ({"conversations": [HUMAN, GPT], "chosen": GPT, "rejected": GPT}, "unbalanced_roles", "message 2"),
        ({"conversations": {"from": "human"}}, "wrong_type", '"conversations" is an object'),
    ],
)
def test_a_bad_row_says_why(row: dict, reason: str, message: str):
    with pytest.raises(RowError) as error:
        read(row)
    assert error.value.reason == reason and str(error.value).startswith(message)


def test_an_empty_reply_may_stand_where_it_is_not_trained():
    trajectory = read({"conversations": [HUMAN, {"from": "gpt", "value": "", "loss": False}, HUMAN, GPT]})
    assert [turn.trained for turn in trajectory.turns] == [False, True]


def test_a_record_with_tools_is_written_as_llama_factory_has_it():
    turns = [
        Turn(
            reply=Message(role="assistant", tool_calls=[ToolCall(name="f", arguments={"x": 1})]),
            observation=[Message(role="tool", content="2")],
            trained=False,
        ),
        Turn(reply=Message(role="assistant", content="Done."), action="done"),
    ]
    start = [Message(role="system", content="Be brief."), Message(role="user", content="Go")]
    record = Trajectory(id="a", task=Task(id="t"), start=start, turns=turns, success=True)
    assert write(record) == {
        "conversations": [
            {"from": "human", "value": "Go"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}', "loss": False},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "Done."},
        ],
        "system": "Be brief.",
        "task_id": "t",
        "id": "a",
        "success": True,
    }


def test_a_reply_of_text_and_calls_and_a_pair_of_episodes_are_refused():
    call, _ = map(read, rows("sharegpt_preference"))
    reply = Message(role="assistant", content="I look.", tool_calls=[ToolCall(name="look")])
    for turns, said in (
        ([Turn(reply=reply)], "both text and tool calls"),
        (call.chosen * 2, "one reply for each side"),
    ):
        with pytest.raises(RowError, match=said):
            write(call.model_copy(update={"chosen": turns}))
