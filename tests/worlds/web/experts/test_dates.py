from bough.worlds.web.experts import dates
from tests.worlds.web.experts.scenes import advice

SUBMIT = ("button", "Submit")
CALENDAR = [("link", "Prev"), ("link", "Next"), "March 2016", ("link", "4"), ("link", "14")]


def choose(goal_date, value="", *calendar):
    goal = f"Select {goal_date} as the date and hit submit."
    return advice(dates.choose_date, goal, ("text", "", {"value": value}), *calendar, SUBMIT)


def test_the_calendar_is_opened_turned_and_the_day_taken():
    assert choose("03/04/2016") == "click('1')"
    assert choose("03/04/2016", "", *CALENDAR) == "click('4')"
    assert choose("02/04/2016", "", *CALENDAR) == "click('2')"
    assert choose("04/04/2016", "", *CALENDAR) == "click('3')"
    assert choose("12/04/2015", "", *CALENDAR) == "click('2')"
    assert choose("03/04/2016", "03/04/2016") == "click('2')"


def flight(*shown, kind="cheapest"):
    goal = f"Book the {kind} one-way flight from: Bangor to: XYZ on 10/02/2016."
    return advice(dates.book_flight, goal, *shown)


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
