"""What experts do on pages by hand: text lines as they are, elements as (kind, name, facts), numbered as they come."""

from typing import Any

import pytest

from bough.chat.tool_calls import function_text, read_call
from bough.worlds.web.actions import Line, bind
from bough.worlds.web.environment import advise
from bough.worlds.web.page import View

Written = str | tuple[str, str] | tuple[str, str, dict[str, Any]]


def view(goal: str, *written: Written) -> View:
    lines, number = [], 0
    for line in written:
        if isinstance(line, str):
            lines.append(Line(line))
            continue
        number += 1
        lines.append(Line(line[1], number, line[0], f"#e{number}", line[2] if len(line) > 2 else {}))
    return View(goal, tuple(lines), False, 0.0, "")


def advice(page: str, goal: str, *written: Written, did: str = "", before: list[list[Written]] | None = None) -> str:
    """What the expert of a page writes after the actions `did`, before each of which the page showed `before`."""
    history = [bind(read_call(action)) for action in did.split("; ") if did]
    now = view(goal, *written)
    seen = [now] * len(history) if before is None else [view(goal, *lines) for lines in before]
    found = advise(page, now, history, seen)
    return "stuck" if found is None else function_text(found.call)


def buttons(*names: str) -> list[Written]:
    return [("button", name) for name in names]


def field(value: str = "", kind: str = "text", **facts: Any) -> Written:
    return (kind, "", {"value": value, **facts})


def box(name: str, checked: bool) -> Written:
    return ("checkbox", name, {"checked": checked})


SUBMIT = ("button", "Submit")
IN_TURN = "Click button ONE, then click button TWO."
TABS = 'Switch between the tabs to find and click on the link "eu".'
GREEN = "Select all the shades of green and press Submit."
PALE, SPAN = ("span", "", {"color": "rgb(9, 8, 7)"}), {"color": "rgb(1, 99, 7)"}
TICKETS = [("button", "Back"), "1h 5m", ("button", "Book for $90"), "2h 0m", ("button", "Book for $80")]
TREE, FOLDER = 'Find and click on "Ann".', ("div", "", {"class": "hitarea expandable-hitarea"})
ANN = ("menuitem", "Ann", {"submenu": True})
GRID = [("li", name) for name in "abcdefghi"]


@pytest.mark.parametrize(
    ("page", "goal", "lines", "expected"),
    [
        ("click-button", 'Click on the "Go" button.', [("link", "Go"), *buttons("Stop", "Go")], "click('3')"),
        ("click-button", 'Click on the "Go" button.', buttons("Stop"), "stuck"),
        ("click-test-2", "Click button TWO.", buttons("ONE", "TWO"), "click('2')"),
        ("click-dialog", 'Click the button labeled "x".', buttons("OK", "Close"), "click('2')"),
        ("click-dialog-2", 'Click the button labeled "OK".', buttons("Close", "OK"), "click('2')"),
        ("focus-text-2", "Focus on the 3rd input textbox.", [field()] * 3, "click('3')"),
        ("focus-text", "Focus into the textbox.", [field()] * 3, "click('1')"),
        ("click-menu", "Select Ann>Bob", [("menuitem", "Zoe"), ANN], "hover('2')"),
        ("click-menu", "Select Ann>Bob", [ANN, ("menuitem", "Bob")], "click('2')"),
        ("click-menu", "Select Ann>Bob", [("menuitem", "Zoe")], "stuck"),
        ("click-menu-2", 'Click "Menu", then "Save"', buttons("Menu"), "click('1')"),
        ("click-menu-2", 'Click "Menu", then "Save"', [ANN], "hover('1')"),
        ("click-menu-2", 'Click "Menu", then "Save"', [ANN, ("menuitem", "Save")], "click('2')"),
        ("click-option", "Select a and click Submit.", [("radio", "a", {"checked": True}), SUBMIT], "click('2')"),
        ("click-checkboxes", "Select a, b and click Submit.", [box("a", True), box("b", False), SUBMIT], "click('2')"),
        ("click-checkboxes", "Select a, b and click Submit.", [box("a", True), box("b", True), SUBMIT], "click('3')"),
        ("click-checkboxes", "Select b and click Submit.", [box("a", True), box("b", True), SUBMIT], "click('1')"),
        ("click-shades", GREEN, [PALE, ("span", "", SPAN), SUBMIT], "click('2')"),
        ("click-shades", GREEN, [PALE, ("span", "", {**SPAN, "class": "selected"}), SUBMIT], "click('3')"),
        ("click-shades", GREEN, [("span", "", {**PALE[2], "class": "selected"}), SUBMIT], "click('1')"),
        ("buy-ticket", "Buy the cheapest ticket", TICKETS, "click('3')"),
        ("buy-ticket", "Buy the most expensive ticket", TICKETS, "click('2')"),
        ("buy-ticket", "Buy the ticket of shortest duration", TICKETS, "click('2')"),
        ("navigate-tree", TREE, [FOLDER, ("span", "Bob")], "click('1')"),
        ("navigate-tree", TREE, [FOLDER, ("span", "Ann")], "click('2')"),
        ("drag-sort-numbers", "Sort.", [("li", "10"), ("li", "30"), ("li", "20"), SUBMIT], "drag('3', '2')"),
        ("drag-sort-numbers", "Sort.", [("li", "10"), ("li", "20"), SUBMIT], "click('3')"),
        ("drag-items-grid", "Drag e up by one.", GRID, "drag('5', '2')"),
        ("drag-items-grid", "Drag e right by one.", GRID, "drag('5', '6')"),
        ("drag-items-grid", "Drag a to the bottom center.", GRID, "drag('1', '8')"),
        ("drag-items", "Drag c to the 1st position.", GRID[:5], "drag('3', '1')"),
        ("drag-items", "Drag c down by one.", GRID[:5], "drag('3', '4')"),
        ("count-sides", "Count the sides.", [], "stuck"),
    ],
)  # fmt: skip
def test_the_right_thing_is_clicked(page, goal, lines, expected):
    assert advice(page, goal, *lines) == expected


def test_two_buttons_are_pressed_in_their_order():
    assert advice("click-button-sequence", IN_TURN, *buttons("TWO", "ONE")) == "click('2')"
    assert advice("click-button-sequence", IN_TURN, *buttons("TWO", "ONE"), did="click('2')") == "click('1')"


def test_tabs_are_opened_one_after_the_other_and_again_until_the_link_is_there():
    tabs = [("link", f"Tab #{number}", {"selected": number == 1}) for number in (1, 2, 3)]
    assert advice("click-tab-2", TABS, *tabs, ("span", "ante")) == "click('2')"
    assert advice("click-tab-2", TABS, *tabs, ("span", "ante"), did="click('2')") == "click('3')"
    assert advice("click-tab-2", TABS, *tabs, ("span", "ante"), ("span", "eu")) == "click('5')"
    assert advice("click-tab-2", TABS, *tabs, did="click('3'); click('2'); click('1')") == "click('3')", "longest ago"


INBOX = [
    ("div", "Zsa Hi. Lorem.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
    ("div", "Zsa Zsa Re. Ipsum.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
]  # fmt: skip
MAIL = [("span", "", {"id": "close-email"}), "Zsa Zsa to me", "Lorem.", ("span", "Reply"), ("span", "Forward")]
BOBS = [("span", "", {"id": "close-email"}), "Bob to me", ("span", "Reply"), ("span", "Forward")]
SEARCH = [("span", "", {"id": "search-cancel"}), field(id="search-input")]


def form(name: str, *lines: Written) -> list[Written]:
    return [("span", "", {"id": f"close-{name}"}), ("span", "", {"id": f"send-{name}"}), *lines]


@pytest.mark.parametrize(
    ("task", "lines", "expected"),
    [
        ("click the trash icon to delete it", INBOX, "click('5')"),
        ("click the star icon to mark it", INBOX, "click('6')"),
        ("click the trash icon to delete it", MAIL, "click('1')"),
        ("click the trash icon to delete it", BOBS[2:], "stuck"),
        ('reply to them with the text "Yes"', INBOX, "click('4')"),
        ('reply to them with the text "Yes"', MAIL, "click('2')"),
        ('reply to them with the text "Yes"', BOBS, "click('1')"),
        ('reply to them with the text "Yes"', SEARCH, "click('1')"),
        ('reply to them with the text "Yes"', form("forward", field()), "click('1')"),
        ('reply to them with the text "Yes"', form("reply", "to: Bob", field(kind="textarea")), "click('1')"),
        ('reply to them with the text "Yes"', form("reply", "to: Zsa Zsa", field(kind="textarea")), "fill('3', 'Yes')"),
        ('reply to them with the text "Yes"', form("reply", "to: Zsa Zsa", field("Yes", "textarea")), "click('2')"),
        ("forward that email to Jo Ann", MAIL, "click('3')"),
        ("forward that email to Jo Ann", form("forward", field(), field("Lorem.", "textarea")), "fill('3', 'Jo Ann')"),
    ],
)
def test_a_mail_is_found_by_its_sender_and_what_is_open_by_mistake_is_closed_first(task, lines, expected):
    assert advice("email-inbox", f"Find the email by Zsa Zsa and {task}.", *lines) == expected


def test_icons_of_posts():
    def icons(*names):
        return [("span", "", {"class": name}) for name in names]

    page = ["Ann @ann 1h ago", *icons("reply", "more"), "Bob @bob 2h ago", *icons("reply", "more")]
    goal = 'For the user @bob, click on the "{}" button.'
    assert advice("social-media", goal.format("Reply"), *page) == "click('3')"
    assert advice("social-media", goal.format("Block"), *page) == "click('4')", "among the others"
    assert advice("social-media", goal.format("Block"), *page, ("li", "Block")) == "click('5')"
    covered = [*page[:3], ("li", "Block"), *page[3:]]
    assert advice("social-media", goal.format("Block"), *covered) == "click('2')", "the menu of another post"
    goal = 'Click the "Like" button on {} by @ann and then click Submit.'
    page = ["@ann", *icons("like active"), "@bob", *icons("like"), "@ann", *icons("like"), SUBMIT]
    assert advice("social-media-all", goal.format("all posts"), *page) == "click('3')"
    assert advice("social-media-some", goal.format("1 post"), *page) == "click('4')"
    wrong = ["@ann", *icons("like active"), "@bob", *icons("like active"), SUBMIT]
    assert advice("social-media-all", goal.format("all posts"), *wrong) == "click('2')", "clicked again"


LOGIN, KEY = 'Enter the username "ann" and the password "k".', ("button", "Login", {"id": "subbtn"})
LIST, SCROLL = "Select a from the list and click Submit.", "Select a, b from the scroll list and click Submit."
OPTIONS = ("select", "", {"value": "x", "options": ["x", "a", "b"]})
FILM = "Search for drama movies directed by Lee from year 1990."
COUNTRY = 'Enter an item that starts with "Ca" and ends with "da".'
FORM_1 = "Select 3 with the slider, click the 2nd checkbox, then hit Submit."
HANDLE = ("span", "", {"class": "ui-slider-handle", "focused": True})
FORM_2 = 'Check the 2nd radio button and enter the number "7" into the 1st textbox.'
OFF, ON = ("radio", "", {"checked": False}), ("radio", "", {"checked": True})
FORM_3 = 'Choose 5ft from the dropdown, then click the button labeled "No".'
SIGN = 'Scroll to the bottom of the textarea, enter the name "Ann" then press "Agree"'
AREA, SIGNING = field("…", "textarea"), buttons("Cancel", "Agree")
CALENDAR = [("link", "Prev"), ("link", "Next"), "March 2016", ("link", "4"), ("link", "14")]
MARCH, PAST, LATER = (
    f"Select {month}/04/{year} as the date." for month, year in (("03", 2016), ("12", 2015), ("04", 2016))
)


@pytest.mark.parametrize(
    ("page", "goal", "lines", "expected"),
    [
        ("enter-text", 'Enter "Ann" and press Submit.', [field(), SUBMIT], "fill('1', 'Ann')"),
        ("enter-text", 'Enter "Ann" and press Submit.', [field("Ann"), SUBMIT], "click('2')"),
        ("enter-text-2", 'Type "Ann" in all upper case letters', [field(), SUBMIT], "fill('1', 'ANN')"),
        ("enter-text-2", 'Type "Ann" in all lower case letters', [field(), SUBMIT], "fill('1', 'ann')"),
        ("enter-password", 'Password "k".', [field("k", "password"), field("", "password"), SUBMIT], "fill('2', 'k')"),
        ("login-user", LOGIN, [field(), field("", "password"), KEY], "fill('1', 'ann')"),
        ("login-user", LOGIN, [field("ann"), field("", "password"), KEY], "fill('2', 'k')"),
        ("login-user", LOGIN, [field("ann"), field("k", "password"), KEY], "click('3')"),
        ("login-user-popup", LOGIN, [field(), field("", "password"), KEY, *buttons("Cancel")], "click('4')"),
        ("login-user", "A goal without names.", [field(), KEY], "stuck"),
        ("enter-date", "Enter 03/09/2012 as the date.", [field("", "date"), SUBMIT], "fill('1', '2012-03-09')"),
        ("enter-time", "Enter 2:05 PM as the time.", [field("", "time"), SUBMIT], "fill('1', '14:05')"),
        ("choose-list", LIST, [OPTIONS, SUBMIT], "select_option('1', 'a')"),
        ("click-scroll-list", SCROLL, [OPTIONS, SUBMIT], "select_option('1', ['a', 'b'])"),
        ("click-scroll-list", SCROLL, [field("b, a", "select"), SUBMIT], "click('2')"),
        ("multi-layouts", FILM, ["Genre", field("drama"), "Year", field(), *buttons("Search")], "fill('2', '1990')"),
        ("multi-layouts", FILM, [field("drama"), "Genre", field(), "Director", *buttons("Search")], "fill('2', 'Lee')"),
        ("use-autocomplete", COUNTRY, [field(), SUBMIT], "fill('1', 'Ca')"),
        ("use-autocomplete", COUNTRY, [field("Ca"), ("li", "Cambodia"), ("li", "Canada"), SUBMIT], "click('3')"),
        ("form-sequence", FORM_1, [HANDLE, "3", box("", False), box("", False), SUBMIT], "click('3')"),
        ("form-sequence-2", FORM_2, [OFF, OFF, field(), field(), SUBMIT], "click('2')"),
        ("form-sequence-2", FORM_2, [OFF, ON, field("7"), field("8"), SUBMIT], "fill('4', '')"),
        ("form-sequence-2", FORM_2, [OFF, ON, field(), field(), SUBMIT], "fill('3', '7')"),
        ("form-sequence-3", FORM_3, [field("4ft", "select"), *buttons("No")], "select_option('1', '5ft')"),
        ("form-sequence-3", FORM_3, [field("5ft", "select"), ("li", "5ft"), *buttons("No")], "click('2')"),
        ("sign-agreement", SIGN, [AREA, field(disabled=True), *SIGNING], "scroll('bottom', '1')"),
        ("sign-agreement", SIGN, [AREA, field(), *SIGNING], "fill('2', 'Ann')"),
        ("sign-agreement", SIGN, [AREA, field("Ann"), *SIGNING], "click('4')"),
        ("sign-agreement", "Press the cancel button.", [AREA, *SIGNING], "click('2')"),
        ("choose-date", MARCH, [field(), SUBMIT], "click('1')"),
        ("choose-date", MARCH, [field(), *CALENDAR, SUBMIT], "click('4')"),
        ("choose-date", PAST, [field(), *CALENDAR, SUBMIT], "click('2')"),
        ("choose-date", LATER, [field(), *CALENDAR, SUBMIT], "click('3')"),
        ("choose-date", MARCH, [field("03/04/2016"), SUBMIT], "click('2')"),
        ("choose-date", MARCH, [field("03/04/2016"), *CALENDAR, SUBMIT], "click('4')"),
    ],
)  # fmt: skip
def test_fields_are_filled_and_sent(page, goal, lines, expected):
    assert advice(page, goal, *lines) == expected


def test_a_suggestion_is_clicked_before_it_is_sent():
    assert advice("use-autocomplete", COUNTRY, field("Canada"), SUBMIT, did="click('3')") == "click('2')"
    assert advice("use-autocomplete", COUNTRY, field("Cambodia"), SUBMIT, did="click('2')") == "fill('1', 'Ca')"


def test_a_slider_is_taken_moved_and_left():
    def slider(value, focused=True):
        return [("span", "", {"class": "ui-slider-handle", "focused": focused}), str(value), SUBMIT]

    goal = "Select {} with the slider and hit Submit."
    assert advice("use-slider", goal.format(20), *slider(0, focused=False)) == "click('1')"
    assert advice("use-slider", goal.format(20), *slider(0)) == "press('PageUp')"
    assert advice("use-slider", goal.format(20), *slider(22)) == "press('ArrowLeft')"
    assert advice("use-slider", goal.format(20), *slider(20)) == "click('2')"
    leapt = {"did": "press('PageUp')", "before": [slider(0)]}
    assert advice("use-slider", goal.format(24), *slider(20), **leapt) == "press('ArrowRight')", "a leap is too far"
    assert advice("use-slider", goal.format(44), *slider(20), **leapt) == "press('PageUp')"


BOTTOM, TOP = (f"Scroll the textarea to the {end} of the text." for end in ("bottom", "top"))
TEXTS = [field("a", "textarea"), field("b", "textarea"), field(), SUBMIT]
BETWEEN, GUESSED = "Guess the number between 0-9 and press Submit.", field("4", "number")


@pytest.mark.parametrize(
    ("page", "goal", "lines", "expected"),
    [
        ("read-table", "Enter the value of City into it.", ["City | Rome", field(), SUBMIT], "fill('1', 'Rome')"),
        ("read-table", "Enter the value of Age into the text field.", ["City | Rome", field(), SUBMIT], "stuck"),
        ("read-table-2", "Enter the values.", ["Age | 7", "Age:", field(), SUBMIT], "fill('1', '7')"),
        ("find-word", "Find the 2nd word in the paragraph.", ["One, two. Three", field(), SUBMIT], "fill('1', 'two')"),
        ("scroll-text", "Find the last word.", [field("One. Two.", "textarea"), field(), SUBMIT], "fill('2', 'Two')"),
        ("copy-paste-2", "Copy the text from the 2nd text area.", TEXTS, "fill('3', 'b')"),
        ("scroll-text-2", BOTTOM, [("textarea", "", {"scrolled": "40%"}), SUBMIT], "scroll('bottom', '1')"),
        ("scroll-text-2", BOTTOM, [("textarea", "", {"scrolled": "100%"}), SUBMIT], "click('2')"),
        ("scroll-text-2", TOP, [("textarea", "", {"scrolled": "100%"}), SUBMIT], "scroll('top', '1')"),
        ("simple-arithmetic", "Solve.", ["3 - 4 =", field(), SUBMIT], "fill('1', '-1')"),
        ("simple-arithmetic", "Solve.", ["-3 x 4 =", field(), SUBMIT], "fill('1', '-12')"),
        ("simple-algebra", "Solve for x.", ["x + 3 = 10", field(), SUBMIT], "fill('1', '7')"),
        ("simple-algebra", "Solve for x.", ["x - 3 = 10", field(), SUBMIT], "fill('1', '13')"),
        ("simple-algebra", "Solve for x.", ["-3 + x = 1", field(), SUBMIT], "fill('1', '4')"),
        ("simple-algebra", "Solve for x.", ["3 - x = 10", field(), SUBMIT], "fill('1', '-7')"),
        ("guess-number", BETWEEN, [field("", "number"), SUBMIT], "fill('1', '4')"),
        ("guess-number", BETWEEN, [GUESSED, SUBMIT], "click('2')"),
        ("guess-number", BETWEEN, ["The number is higher than 4.", GUESSED, SUBMIT], "fill('1', '7')"),
        ("highlight-text", "Highlight the text in the paragraph below.", ["Lorem.", SUBMIT], "select_text('Lorem.')"),
    ],
)  # fmt: skip
def test_what_is_read_or_worked_out_is_answered(page, goal, lines, expected):
    assert advice(page, goal, *lines) == expected


def test_what_the_page_showed_before_is_remembered():
    before = ["The number is higher than 4.", GUESSED, SUBMIT]
    now = ["The number is lower than 7.", field("7", "number"), SUBMIT]
    assert advice("guess-number", BETWEEN, *now, did="click('2')", before=[before]) == "fill('1', '5')"
    before, now = [[field(text, "textarea"), field(), SUBMIT] for text in ("a b", "x")]
    assert advice("copy-paste", "Copy the text.", *now, did="fill('1', 'x')", before=[before]) == "fill('2', 'a b')"
    cards = [("div", "", {"class": "card"}), ("div", "", {"class": "card"}), SUBMIT]
    looked = [cards, [("div", "7"), *cards[1:]], [cards[0], ("div", "3"), SUBMIT]]
    did = "click('1'); click('2'); click('2')"
    assert advice("find-greatest", "Find the greatest.", *cards, did=did, before=looked) == "click('1')"


@pytest.mark.parametrize(
    ("kind", "name", "size", "words", "fits"),
    [
        ("circle", "", "10x10", "red circle", True),
        ("circle", "", "10x10", "blue circle", False),
        ("circle", "", "10x10", "small item", True),
        ("polygon", "", "10x10", "triangles", True),
        ("rect", "", "18x18", "large rectangle", True),
        ("rect", "", "10x10", "large rectangle", False),
        ("letter", "I", "4x20", "large letter", True),
        ("letter", "7", "10x10", "digit", True),
        ("letter", "7", "10x10", "shape", False),
        ("letter", "O", "10x10", "red z", False),
        ("letter", "y", "10x10", "red ys", True),
        ("letter", "s", "10x10", "red ss", True),
        ("letter", "s", "10x10", "red ys", False),
    ],
)
def test_a_shape_is_what_the_words_say(kind, name, size, words, fits):
    line = (kind, name, {"fill": "red", "size": size})
    assert advice("click-shape", f"Click on a {words}", line) == ("click('1')" if fits else "stuck")
