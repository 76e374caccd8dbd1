import pytest

from bough.worlds.web.experts import filling
from tests.worlds.web.experts.scenes import advice, lines

SUBMIT = ("button", "Submit")


def field(value="", **facts):
    return ("text", "", {"value": value, **facts})


def test_the_quoted_word_is_written_and_sent():
    assert advice(filling.text, 'Enter "Ann" and press Submit.', field(), SUBMIT) == "fill('1', 'Ann')"
    assert advice(filling.text, 'Enter "Ann" and press Submit.', field("Ann"), SUBMIT) == "click('2')"


@pytest.mark.parametrize(("case", "word"), [("upper", "ANN"), ("lower", "ann")])
def test_the_case_is_minded(case, word):
    assert (
        advice(filling.text_in_case, f'Type "Ann" in all {case} case letters', field(), SUBMIT)
        == f"fill('1', '{word}')"
    )


def test_a_password_is_written_into_both_fields():
    both = [("password", "", {"value": "k"}), ("password", "", {"value": ""})]
    assert advice(filling.password_twice, 'Enter the password "k" twice.', *both, SUBMIT) == "fill('2', 'k')"


def test_a_login_is_two_fields_and_the_button():
    goal = 'Enter the username "ann" and the password "k" and press login.'
    button = ("button", "Login", {"id": "subbtn"})
    assert advice(filling.login, goal, field(), ("password", "", {"value": ""}), button) == "fill('1', 'ann')"
    assert advice(filling.login, goal, field("ann"), ("password", "", {"value": ""}), button) == "fill('2', 'k')"
    assert advice(filling.login, goal, field("ann"), ("password", "", {"value": "k"}), button) == "click('3')"


def test_a_message_over_the_page_goes_first():
    goal = 'Enter the username "ann" and the password "k" and press login.'
    shown = [field(), ("password", "", {"value": ""}), ("button", "Login", {"id": "subbtn"}), ("button", "Cancel")]
    assert advice(filling.login_under_popup, goal, *shown) == "click('4')"
    assert advice(filling.login_under_popup, goal, *shown[:3]) == "fill('1', 'ann')"


def test_dates_and_times_are_written_as_their_fields_want_them():
    date = advice(filling.date_field, "Enter 03/09/2012 as the date.", ("date", "", {"value": ""}), SUBMIT)
    assert date == "fill('1', '2012-03-09')"
    time = advice(filling.time_field, "Enter 2:05 PM as the time.", ("time", "", {"value": ""}), SUBMIT)
    assert time == "fill('1', '14:05')"


def test_one_or_several_options_are_chosen():
    box = ("select", "", {"value": "x", "options": ["x", "a", "b"]})
    assert advice(filling.choose, "Select a from the list and click Submit.", box, SUBMIT) == "select_option('1', 'a')"
    many = advice(filling.choose, "Select a, b from the scroll list and click Submit.", box, SUBMIT)
    assert many == "select_option('1', ['a', 'b'])"
    done = ("select", "", {"value": "b, a", "options": []})
    assert advice(filling.choose, "Select a, b from the scroll list and click Submit.", done, SUBMIT) == "click('2')"


def test_fields_of_a_form_go_by_the_labels_before_or_after_them():
    goal = "Search for drama movies directed by Lee from year 1990."
    filled = [field("drama"), field("Lee"), field("")]
    before = ["Genre", filled[0], "Director", filled[1], "Year", filled[2], ("button", "Search")]
    after = [filled[0], "Genre", filled[1], "Director", filled[2], "Year", ("button", "Search")]
    assert advice(filling.movie, goal, *before) == advice(filling.movie, goal, *after) == "fill('3', '1990')"


def test_of_the_suggestions_the_one_with_the_right_end_is_taken():
    goal = 'Enter an item that starts with "Ca" and ends with "da".'
    assert advice(filling.autocomplete, goal, field(), SUBMIT) == "fill('1', 'Ca')"
    items = [("li", "Cambodia"), ("li", "Canada")]
    assert advice(filling.autocomplete, goal, field("Ca"), *items, SUBMIT) == "click('3')"
    assert advice(filling.autocomplete, goal, field("Canada"), SUBMIT, did=("click('3')",)) == "click('2')"
    assert advice(filling.autocomplete, goal, field("Cambodia"), SUBMIT, did=("click('2')",)) == "fill('1', 'Ca')"


def slider(value, focused=True):
    return [("span", "", {"class": "ui-slider-handle", "focused": focused}), str(value), SUBMIT]


def test_a_slider_is_taken_moved_and_left():
    goal = "Select 20 with the slider and hit Submit."
    assert advice(filling.slider, goal, *slider(0, focused=False)) == "click('1')"
    assert advice(filling.slider, goal, *slider(0)) == "press('PageUp')"
    assert advice(filling.slider, goal, *slider(22)) == "press('ArrowLeft')"
    assert advice(filling.slider, goal, *slider(20)) == "click('2')"


def test_a_leap_that_would_go_too_far_is_not_repeated():
    goal, before = "Select 24 with the slider and hit Submit.", lines(*slider(0))
    assert advice(filling.slider, goal, *slider(20), did=("press('PageUp')",), seen=[before]) == "press('ArrowRight')"
    far = "Select 44 with the slider and hit Submit."
    assert advice(filling.slider, far, *slider(20), did=("press('PageUp')",), seen=[before]) == "press('PageUp')"


def test_the_forms_in_sequence():
    boxes = [("checkbox", "", {"checked": False}), ("checkbox", "", {"checked": False})]
    goal = "Select 3 with the slider, click the 2nd checkbox, then hit Submit."
    handle = ("span", "", {"class": "ui-slider-handle", "focused": True})
    assert advice(filling.slider_and_box, goal, handle, "3", *boxes, SUBMIT) == "click('3')"
    radios = [("radio", "", {"checked": False})] * 2 + [field(), field(), SUBMIT]
    goal = 'Check the 2nd radio button and enter the number "7" into the 1st textbox.'
    assert advice(filling.radio_and_text, goal, *radios) == "click('2')"
    radios[1] = ("radio", "", {"checked": True})
    assert advice(filling.radio_and_text, goal, *radios) == "fill('3', '7')"
    goal, box = 'Choose 5ft from the dropdown, then click the button labeled "No".', ("select", "", {"value": "4ft"})
    assert (
        advice(filling.dropdown_and_button, goal, box, ("button", "Yes"), ("button", "No"))
        == "select_option('1', '5ft')"
    )
    covered = [("select", "", {"value": "5ft"}), ("li", ""), ("li", "5ft"), ("button", "Yes"), ("button", "No")]
    assert advice(filling.dropdown_and_button, goal, *covered) == "click('3')", "the open list covers the buttons"


def test_an_agreement_is_read_to_the_end_before_it_is_signed():
    goal = 'Scroll to the bottom of the textarea, enter the name "Ann" then press "Agree"'
    area, buttons = ("textarea", "", {"value": "…"}), [("button", "Cancel"), ("button", "Agree")]
    assert advice(filling.agreement, goal, area, field(disabled=True), *buttons) == "scroll('bottom', '1')"
    assert advice(filling.agreement, goal, area, field(), *buttons) == "fill('2', 'Ann')"
    assert advice(filling.agreement, goal, area, field("Ann"), *buttons) == "click('4')"
    assert advice(filling.agreement, "Press the cancel button.", area, *buttons) == "click('2')"


def test_a_colour_is_written_as_its_code():
    assert (
        advice(filling.color_code, "Select rgb(1, 16, 255) with the color picker", field(), SUBMIT)
        == "fill('1', '0110FF')"
    )
    assert advice(filling.color_code, "Select navy with the color picker", field("000080"), SUBMIT) == "click('2')"


CALENDAR = [("link", "Prev"), ("link", "Next"), "March 2016", ("link", "4"), ("link", "14")]


def choose(goal_date, value="", *calendar):
    goal = f"Select {goal_date} as the date and hit submit."
    return advice(filling.choose_date, goal, ("text", "", {"value": value}), *calendar, SUBMIT)


def test_the_calendar_is_opened_turned_and_the_day_taken():
    assert choose("03/04/2016") == "click('1')"
    assert choose("03/04/2016", "", *CALENDAR) == "click('4')"
    assert choose("02/04/2016", "", *CALENDAR) == "click('2')"
    assert choose("04/04/2016", "", *CALENDAR) == "click('3')"
    assert choose("12/04/2015", "", *CALENDAR) == "click('2')"
    assert choose("03/04/2016", "03/04/2016") == "click('2')"
    assert choose("03/04/2016", "03/04/2016", *CALENDAR) == "click('4')"


def flight(*shown, kind="cheapest", **more):
    goal = f"Book the {kind} one-way flight from: Bangor to: XYZ on 10/02/2016."
    return advice(filling.book_flight, goal, *shown, **more)


def form(start="", end="", date=""):
    fields = zip(("flight-from", "flight-to", "datepicker"), (start, end, date), strict=True)
    return [*(("text", "", {"id": id, "value": value}) for id, value in fields), ("button", "Search", {"id": "search"})]


def test_a_flight_is_two_places_from_suggestions_a_date_and_a_search():
    assert flight(*form()) == "fill('1', 'Bangor')"
    assert flight(*form("Bangor"), ("li", "Bangor, ME (BGR)")) == "click('5')"
    assert flight(*form("Bangor, ME (BGR)")) == "fill('2', 'XYZ')"
    assert flight(*form("Bangor, ME (BGR)", "Town (XYZ)")) == "click('3')"
    assert flight(*form("Bangor, ME (BGR)", "Town (XYZ)", "10/02/2016")) == "click('4')"
    assert flight(*form("Bangor, ME (BGR)", "XYZField,", "10/02/2016")) == "fill('2', 'XYZ')"
    assert flight(*form("Bangor, ME (BGR)x", "Town (XYZ)", "10/02/2016")) == "fill('1', 'Bangor')"
    offers = ["3h 10m", ("button", "Book flight for $300"), "2h 59m", ("button", "Book flight for $999")]
    assert flight(*offers) == "click('1')"
    assert flight(*offers, kind="shortest") == "click('2')"


def test_flights_of_a_wrong_search_are_left():
    offers = [("button", "Back", {"id": "menu-back"}), "2h 10m", ("button", "Book flight for $300")]
    right = ("Bangor, ME (BGR)", "Town (XYZ)", "10/02/2016")
    assert flight(*offers, did=("click('4')",), seen=[lines(*form(*right))]) == "click('2')"
    for wrong in (("Berlin (BER)", *right[1:]), (right[0], "Berlin (BER)", right[2]), (*right[:2], "10/03/2016")):
        assert flight(*offers, did=("click('4')",), seen=[lines(*form(*wrong))]) == "click('1')"
