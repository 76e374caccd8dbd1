import pytest

from bough.chat import commands
from bough.chat.forms import MalformedError
from bough.types import ToolCall


def test_thought_and_command_are_read():
    said = commands.parse('thought: The button\nis there.\naction: CLICK(selector="#ok > b")')
    assert said.thought == "The button\nis there."
    assert said.action == 'CLICK(selector="#ok > b")'
    assert said.calls == (ToolCall(name="click", arguments={"selector": "#ok > b"}),)


@pytest.mark.parametrize(
    "reply",
    ["Action: click(selector='#a')", "thought:\nACTION : `CLICK(selector='#a')`", 'x\naction:CLICK(selector="#a")'],
)
def test_case_quotes_and_fences_do_not_matter(reply):
    said = commands.parse(reply)
    assert said.action == 'CLICK(selector="#a")' and said.calls[0].name == "click"


def test_thinking_aloud_is_not_read():
    said = commands.parse('<think>action: WAIT()</think>thought: x\naction: PRESS(key="Enter")')
    assert said.action == 'PRESS(key="Enter")' and said.thought == "x"


@pytest.mark.parametrize("reply", ["", "thought: only", "CLICK(selector='#a')", "the action: is CLICK()"])
def test_a_reply_without_an_action_line_is_malformed(reply):
    with pytest.raises(MalformedError, match="no action"):
        commands.parse(reply)


@pytest.mark.parametrize("written", ["", "click the button", "CLICK(selector=#a)", "CLICK('a', b)", "CLICK(x"])
def test_an_action_that_is_no_command_is_malformed(written):
    with pytest.raises(MalformedError, match="is not a command"):
        commands.parse(f"thought: x\naction: {written}")


def test_two_actions_are_malformed():
    with pytest.raises(MalformedError, match="2 actions"):
        commands.parse("action: WAIT()\naction: WAIT()")


def test_what_is_written_reads_back():
    call = ToolCall(name="fill", arguments={"selector": "#a", "text": 'say "é"\n'})
    reply = commands.write(commands.spell(call), "Because.")
    assert reply == 'thought: Because.\naction: FILL(selector="#a", text="say \\"é\\"\\n")'
    said = commands.parse(reply)
    assert said.calls == (call,) and said.thought == "Because."
    assert commands.write(said.action, said.thought) == reply


def test_the_prompts_example_is_in_the_form_it_asks_for():
    assert commands.parse(commands.PROMPT.partition("\n")[2]).action == 'CLICK(selector="#ok")'
