import pytest

from bough.worlds.web.experts import clicking
from bough.worlds.web.experts.scene import StuckError
from tests.worlds.web.experts.scenes import advice, lines


def test_a_button_goes_by_its_name():
    buttons = [("link", "Go"), ("button", "Stop"), ("button", "Go")]
    assert advice(clicking.named_button, 'Click on the "Go" button.', *buttons) == "click('3')"
    assert advice(clicking.named_button, "Click button TWO.", ("button", "ONE"), ("button", "TWO")) == "click('2')"


def test_two_buttons_are_pressed_in_their_order_however_that_is_done():
    goal, buttons = "Click button ONE, then click button TWO.", [("button", "TWO"), ("button", "ONE")]
    assert advice(clicking.buttons_in_turn, goal, *buttons) == "click('2')"
    assert advice(clicking.buttons_in_turn, goal, *buttons, did=("click('2')",)) == "click('1')"
    buttons, goal = [("button", "ONE"), ("button", "TWO"), ("div", "")], "Click button ONE, then click button TWO."
    assert advice(clicking.buttons_in_turn, goal, *buttons, did=("click('3')",)) == "click('1')"
    assert advice(clicking.buttons_in_turn, goal, *buttons, did=("click('1')", "click('3')")) == "click('2')"
    goal = "Click button ONE, wait 2 seconds, then click button TWO."
    assert advice(clicking.delayed_buttons, goal, *buttons, did=("wait()", "wait()", "click('1')")) == "wait()"
    goal = "Click button ONE, then click button TWO."
    before, now = [("button", "ONE"), ("button", "TWO")], [("button", "ONE", {"focused": True}), ("button", "TWO")]
    did = {"did": ("mouse_click(9, 9)",), "seen": [lines(*before)]}
    assert advice(clicking.buttons_in_turn, goal, *now, **did) == "click('2')"
    assert advice(clicking.buttons_in_turn, goal, *before, **did) == "click('1')"
    goal, buttons = "Click button ONE, then click button TWO.", [("button", "ONE"), ("button", "TWO")]
    assert advice(clicking.buttons_in_turn, goal, *buttons, did=("drag('1', '1')",)) == "click('2')"
    assert advice(clicking.buttons_in_turn, goal, *buttons, did=("drag('1', '2')",)) == "click('1')"


def test_the_second_button_waits_its_seconds():
    goal, buttons = "Click button ONE, wait 2 seconds, then click button TWO.", [("button", "ONE"), ("button", "TWO")]
    steps = ["click('1')", "wait()", "wait()", "click('2')"]
    for number, step in enumerate(steps):
        assert advice(clicking.delayed_buttons, goal, *buttons, did=tuple(steps[:number])) == step


def test_the_dialogs_x_is_called_close():
    buttons = [("button", "Close"), ("button", "OK")]
    assert advice(clicking.dialog, 'Click the button in the dialog box labeled "x".', *buttons) == "click('1')"
    assert advice(clicking.dialog, 'Click the button in the dialog box labeled "OK".', *buttons) == "click('2')"


def test_a_field_goes_by_its_ordinal_if_there_is_one():
    fields = [("text", ""), ("text", ""), ("text", "")]
    assert advice(clicking.text_field, "Focus on the 3rd input textbox.", *fields) == "click('3')"
    assert advice(clicking.text_field, "Focus into the textbox.", *fields) == "click('1')"


def test_tabs_are_opened_one_after_the_other_and_again_until_the_link_is_there():
    goal = 'Switch between the tabs to find and click on the link "eu".'
    tabs = [("link", "Tab #1", {"selected": True}), ("link", "Tab #2"), ("link", "Tab #3")]
    assert advice(clicking.link_in_tabs, goal, *tabs, ("span", "ante")) == "click('2')"
    assert advice(clicking.link_in_tabs, goal, *tabs, ("span", "ante"), did=("click('2')",)) == "click('3')"
    assert advice(clicking.link_in_tabs, goal, *tabs, ("span", "ante"), ("span", "eu")) == "click('5')"
    goal = 'Switch between the tabs to find and click on the link "eu".'
    tabs = [("link", "Tab #1"), ("link", "Tab #2"), ("link", "Tab #3", {"selected": True})]
    did = ("click('2')", "click('1')", "click('3')")
    assert advice(clicking.link_in_tabs, goal, *tabs, did=did) == "click('2')", "its click is longest ago"


def test_shades_are_those_with_most_of_the_colour_and_others_are_taken_back():
    shades = [("span", "", {"color": "rgb(200, 9, 9)"}), ("span", "", {"color": "rgb(9, 200, 9)", "class": "selected"})]
    goal = "Select all the shades of red and press Submit."
    assert advice(clicking.shades, goal, shades[1], ("button", "Submit")) == "click('1')"
    assert advice(clicking.shades, goal, shades[0], ("button", "Submit")) == "click('1')"
    goal = "Select all the shades of green and press Submit."
    spans = [("span", "", {"color": "rgb(9, 8, 7)"}), ("span", "", {"color": "rgb(1, 99, 7)"}), ("button", "Submit")]
    assert advice(clicking.shades, goal, *spans) == "click('2')"
    spans[1] = ("span", "", {"color": "rgb(1, 99, 7)", "class": "selected"})
    assert advice(clicking.shades, goal, *spans) == "click('3')"


def test_the_phone_book_is_turned_to_the_name_to_the_last_page_and_back():
    goal, links = "Find Ann in the contact book and click on their email.", [("link", "<"), ("link", ">")]
    assert advice(clicking.phone_book, goal, "Bob", links[1]) == "click('1')"
    assert advice(clicking.phone_book, goal, "Bob", *links) == "click('2')"
    assert advice(clicking.phone_book, goal, "Bob", links[0]) == "click('1')"
    last, first = lines("Zoe", links[0]), lines("Amy", links[1])
    assert advice(clicking.phone_book, goal, "Bob", *links, did=("click('1')",), seen=[last]) == "click('1')"
    assert advice(clicking.phone_book, goal, "Bob", *links, did=("click('1')",) * 2, seen=[last, first]) == "click('2')"
    goal = "Find Ann in the contact book and click on their email."
    rest = ["Phone:", ("link", "555"), "Email:", ("link", "a@b.c"), ("link", ">")]
    assert advice(clicking.phone_book, goal, "Ann", *rest) == "click('2')"
    assert advice(clicking.phone_book, goal, "Bob", *rest) == "click('3')"


def test_a_closed_pie_is_opened():
    goal, plus = 'Expand the pie menu below and click on the item labeled "q".', ("letter", "+", {"size": "27x38"})
    assert advice(clicking.pie, goal, ("letter", "q", {"size": "1x2"}), plus, did=("click('2')",) * 2) == "click('2')"
    assert advice(clicking.pie, goal, ("letter", "q", {"size": "3x5"}), plus) == "click('2')", "the largest when closed"
    assert advice(clicking.pie, goal, ("letter", "q", {"size": "9x24"}), plus) == "click('1')"


def test_a_menu_is_walked_level_by_level():
    goal, first = "Select Ann>Bob", ("menuitem", "Ann", {"submenu": True})
    assert advice(clicking.menu, goal, ("menuitem", "Zoe"), first) == "hover('2')"
    assert advice(clicking.menu, goal, first, ("menuitem", "Bob")) == "click('2')"
    with pytest.raises(StuckError):
        advice(clicking.menu, goal, ("menuitem", "Zoe"))


def test_boxes_are_set_as_the_goal_says():
    goal = "Select a, b and click Submit."
    boxes = [("checkbox", "a", {"checked": True}), ("checkbox", "b", {"checked": False}), ("button", "Submit")]
    assert advice(clicking.checkboxes, goal, *boxes) == "click('2')"
    boxes[1] = ("checkbox", "b", {"checked": True})
    assert advice(clicking.checkboxes, goal, *boxes) == "click('3')"


@pytest.mark.parametrize(
    ("goal", "button"),
    [
        ("Buy the cheapest ticket", "3"),
        ("Buy the most expensive ticket", "2"),
        ("Buy the ticket of shortest duration", "2"),
    ],
)
def test_the_ticket_with_the_least_or_most(goal, button):
    tickets = [("button", "Back"), "1h 5m", ("button", "Book for $90"), "2h 0m", ("button", "Book for $80")]
    assert advice(clicking.ticket, goal, *tickets) == f"click('{button}')"


def test_numbers_that_are_covered_are_remembered_by_their_place():
    before = lines(("letter", "2", {"x": 10, "y": 10}), ("letter", "1", {"x": 90, "y": 90}))
    covers = [("rect", "", {"x": 11, "y": 9}), ("rect", "", {"x": 90, "y": 91})]
    assert (
        advice(clicking.ascending, "Click the numbers in order.", *covers, did=("click('2')",), seen=[before])
        == "click('1')"
    )


def test_folders_are_opened_until_the_name_is_there():
    goal, folder = 'Navigate through the file tree. Find and click on "Ann".', {"class": "hitarea expandable-hitarea"}
    assert advice(clicking.tree, goal, ("div", "", folder), ("span", "Bob")) == "click('1')"
    assert advice(clicking.tree, goal, ("div", "", folder), ("span", "Ann")) == "click('2')"
