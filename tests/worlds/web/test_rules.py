from bough.chat import actions
from bough.types import ToolCall
from bough.worlds.web import environment
from bough.worlds.web.actions import SIGNATURES, Line, bind

LINES = [Line("Name"), Line("", 1, "text", "#a"), Line("Go", 2, "button", "form > button")]


def test_the_rules_name_every_action_in_the_form_it_is_written_in():
    for name in SIGNATURES:
        assert f"\n{name}(" in environment.text(actions.FUNCTIONS)
        assert f"\n{name.upper()}(" in environment.text(actions.COMMANDS)


def test_the_rules_own_examples_can_be_bound():
    for line in environment.text(actions.FUNCTIONS).splitlines():
        usage, dash, _ = line.partition(" - ")
        if dash and "x" not in usage.partition("(")[2]:
            bind(actions.parse_function(usage).calls[0])


def test_the_rules_end_with_how_to_speak():
    assert environment.text(actions.FUNCTIONS).endswith(actions.FUNCTION_PROMPT)
    assert environment.text(actions.COMMANDS).endswith(actions.COMMAND_PROMPT)


def test_a_call_on_numbers_becomes_a_command_on_selectors():
    fill = ToolCall(name="fill", arguments={"0": "1", "1": "x"})
    assert environment.as_command(fill, LINES) == 'FILL(selector="#a", text="x")'
    drag = ToolCall(name="drag", arguments={"element": "2", "target": "1"})
    assert environment.as_command(drag, LINES) == 'DRAG(selector="form > button", target="#a")'
    assert environment.as_command(ToolCall(name="wait"), LINES) == "WAIT()"


def test_the_command_means_the_same_action():
    call = ToolCall(name="scroll", arguments={"0": "down", "1": "1"})
    written = actions.parse_command(f"action: {environment.as_command(call, LINES)}").calls[0]
    assert bind(written).arguments == {"direction": "down", "element": "#a"}


def test_only_the_actions_asked_for_are_told():
    text = environment.text(actions.FUNCTIONS, ["click", "fill"])
    assert "\nclick('3') - " in text and "\nfill('3', 'text') - " in text and "scroll" not in text
