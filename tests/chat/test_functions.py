import pytest

from bough.chat import functions
from bough.chat.forms import MalformedError
from bough.types import ToolCall


def test_the_call_is_the_line_that_is_one_and_the_thought_stands_before_it():
    said = functions.parse("The second box is right.\nclick('3')")
    assert said.thought == "The second box is right."
    assert said.action == "click('3')"
    assert said.calls == (ToolCall(name="click", arguments={"0": "3"}),)


def test_arguments_are_read_by_place_and_by_name():
    said = functions.parse('fill(3, text="it\'s")')
    assert said.calls[0].arguments == {"0": 3, "text": "it's"}
    assert functions.parse("select_option('1', ['a', 'b'])").calls[0].arguments == {"0": "1", "1": ["a", "b"]}
    assert functions.parse("mouse_click(-3, 4.5)").calls[0].arguments == {"0": -3, "1": 4.5}


@pytest.mark.parametrize(
    "reply", ["```python\nclick('3')\n```", "`click('3')`", "```\nclick('3')```", "  click( '3' )  "]
)
def test_code_fences_are_no_part_of_the_call(reply):
    said = functions.parse(reply)
    assert said.action == "click('3')" and said.thought == ""


def test_a_call_mentioned_inside_a_sentence_is_not_one():
    said = functions.parse("I could use click('1') here, but\nclick('2')")
    assert said.action == "click('2')"


def test_thinking_aloud_calls_nothing():
    said = functions.parse("<think>\nclick('1')\n</think>\nclick('2')")
    assert said.action == "click('2')" and said.thought == ""


def test_what_follows_the_call_does_not_matter():
    assert functions.parse("click('2')\nThat should do it.").action == "click('2')"


@pytest.mark.parametrize(
    "reply",
    [
        "", "click", "click 3", "click(element)", "click('3'", "a.click('3')", "click('3').now()",
        "click(*x)", "click(**x)",
        "click(open('x'))", "click(f'{x}')", "click(b'3')", "click({'a': 1})", "click(1e999)", "click([[1]])", "\x00(",
        "click('" + "a" * 30_000 + "')", "f" + "(" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_call_is_malformed(reply):
    with pytest.raises(MalformedError, match="no action"):
        functions.parse(reply)


def test_two_calls_are_malformed():
    with pytest.raises(MalformedError, match="2 actions; take one at a time"):
        functions.parse("click('1')\nclick('2')")


def test_what_is_written_reads_back():
    call = ToolCall(name="fill", arguments={"0": "3", "text": "a 'b' \"c\"\né"})
    reply = functions.write(functions.spell(call), "Because.")
    said = functions.parse(reply)
    assert said.calls == (call,) and said.thought == "Because."
    assert functions.write(said.action, said.thought) == reply
    assert functions.write("wait()") == "wait()"


def test_the_prompts_example_is_a_call():
    assert functions.parse(functions.PROMPT.partition("example: ")[2]).action == "click('3')"


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1e400", "-1e400", "[0x" + "f" * 5000 + "]"])
def test_a_number_that_cannot_be_written_is_no_argument(number: str):
    assert functions.read_call(f"f({number})") is None
