from bough.worlds.web.experts import filling
from tests.worlds.web.experts.scenes import advice, lines

SUBMIT = ("button", "Submit")
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


def test_a_calendar_that_covers_the_button_is_closed_by_the_same_day():
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


def test_the_best_of_the_offers_is_booked():
    offers = ["3h 10m", ("button", "Book flight for $300"), "2h 59m", ("button", "Book flight for $999")]
    assert flight(*offers) == "click('1')"
    assert flight(*offers, kind="shortest") == "click('2')"


def test_a_place_with_something_typed_after_it_is_written_again():
    assert flight(*form("Bangor, ME (BGR)", "XYZField,", "10/02/2016")) == "fill('2', 'XYZ')"
    assert flight(*form("Bangor, ME (BGR)x", "Town (XYZ)", "10/02/2016")) == "fill('1', 'Bangor')"


def test_flights_of_a_wrong_search_are_left():
    offers = [("button", "Back", {"id": "menu-back"}), "2h 10m", ("button", "Book flight for $300")]
    right = ("Bangor, ME (BGR)", "Town (XYZ)", "10/02/2016")
    assert flight(*offers, did=("click('4')",), seen=[lines(*form(*right))]) == "click('2')"
    for wrong in (("Berlin (BER)", *right[1:]), (right[0], "Berlin (BER)", right[2]), (*right[:2], "10/03/2016")):
        assert flight(*offers, did=("click('4')",), seen=[lines(*form(*wrong))]) == "click('1')"
