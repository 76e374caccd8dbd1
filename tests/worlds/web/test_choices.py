from bough.chat.actions import function_text
from bough.worlds.web.actions import Line, bind
from bough.worlds.web.environment import choices
from bough.worlds.web.page import View


def spelled(goal, *lines):
    calls = choices(View(goal, lines, False, 0.0, ""))
    for call in calls:
        bind(call)
    return [function_text(call) for call in calls]


def test_elements_are_clicked_fields_filled_with_the_goals_words_and_options_chosen():
    lines = [
        Line("Name"),
        Line("", 1, "text", facts={"value": ""}),
        Line("Go", 2, "button"),
        Line("", 3, "select", facts={"options": ["", "x", "y"]}),
    ]
    assert spelled('Write "a" and "b"', *lines) == [
        "click('1')",
        "fill('1', 'a')",
        "fill('1', 'b')",
        "click('2')",
        "select_option('3', 'x')",
        "select_option('3', 'y')",
    ]


def test_what_is_disabled_is_left_alone():
    assert spelled("Go", Line("Go", 1, "button", facts={"disabled": True})) == []


def test_a_goal_without_quotes_gives_its_last_word():
    assert spelled("Enter 5", Line("", 1, "textarea")) == ["click('1')", "fill('1', '5')"]
