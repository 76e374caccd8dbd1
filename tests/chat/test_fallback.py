from bough.chat import template
from bough.types import Message, ToolCall

TOOL = {"type": "function", "function": {"name": "search", "parameters": {}}}
CALL = Message(role="assistant", content="I look.", tool_calls=[ToolCall(name="search", arguments={"word": "été"})])


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


def test_a_reply_with_tool_calls_is_hermes_text():
    assert template.reply_text(CALL) == (
        'I look.\n<tool_call>\n{"name": "search", "arguments": {"word": "été"}}\n</tool_call>'
    )


def test_a_reply_of_tool_calls_alone_begins_with_the_first():
    bare = CALL.model_copy(update={"content": ""})
    assert template.reply_text(bare).startswith("<tool_call>")


def test_neighbouring_results_share_one_user_message():
    messages = [
        Message(role="user", content="Hi"),
        CALL,
        tool("one"),
        tool("two"),
        Message(role="user", content="And?"),
    ]
    spoken = template.without_tools(messages, [])
    assert [message.role for message in spoken] == ["user", "assistant", "user", "user"]
    assert spoken[2].content == "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"


def test_signatures_join_the_system_message_or_become_one():
    with_system = template.without_tools(
        [Message(role="system", content="Be brief."), Message(role="user", content="Hi")], [TOOL]
    )
    assert with_system[0].content.startswith("Be brief.\n\n# Tools")
    assert '"name": "search"' in with_system[0].content
    without = template.without_tools([Message(role="user", content="Hi")], [TOOL])
    assert [message.role for message in without] == ["system", "user"]


def test_a_conversation_without_tools_stays_as_it_is():
    messages = [Message(role="user", content="Hi"), Message(role="assistant", content="Hello")]
    assert template.without_tools(messages, []) == messages
    assert template.without_system(messages) == messages


def test_a_system_message_with_no_user_behind_it_becomes_one():
    messages = [Message(role="system", content="Be brief.")]
    assert template.without_system(messages) == [Message(role="user", content="Be brief.")]
