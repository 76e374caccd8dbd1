"""Experts for pages with a calendar."""

from __future__ import annotations

import re
from datetime import datetime

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, click, fill, first, matched, press


def pick_date(scene: Scene, field: Line, wanted: str) -> Advice:
    """Opens the calendar of a field, turns to the month, takes the day."""
    day = datetime.strptime(wanted, "%m/%d/%Y")
    days = _days(scene)
    if not days and scene.history and scene.last_use(field) == len(scene.history) - 1:
        return press("Tab", "The calendar opens when the field gets the focus, so I leave it first.")
    if not days:
        return click(field, "I open the calendar.")
    shown = datetime.strptime(matched(re.search(r"[A-Z][a-z]+ \d{4}", "\n".join(scene.texts)))[0], "%B %Y")
    if (shown.year, shown.month) == (day.year, day.month):
        return click(first(line for line in days if line.name == str(day.day)))
    turn = "Prev" if (shown.year, shown.month) > (day.year, day.month) else "Next"
    return click(first(line for line in scene.all("link") if line.name == turn), f"{shown:%B %Y} is not the month.")


def _days(scene: Scene) -> list[Line]:
    """The days of the open calendar."""
    return [line for line in scene.all("link") if line.name.isdecimal()]


def choose_date(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"\d+/\d+/\d+")[0]
    field = first(scene.all("text"))
    if field.facts["value"] == wanted and not _days(scene):  # an open calendar covers the button
        return click(scene.submit())
    return pick_date(scene, field, wanted)


def book_flight(scene: Scene) -> Advice:
    """Two places from suggestions, a date, a search, and the best of the flights."""
    match = scene.goal_match(r"Book the (cheapest|shortest) one-way flight from: (.*) to: (.*) on (\d+/\d+/\d+)")
    places = {"flight-from": match[2], "flight-to": match[3]}
    offers = [line for line in scene.all("button") if "Book flight for" in line.name]
    if offers and not _searched(scene, {**places, "datepicker": match[4]}):
        return click(first(scene.all(id="menu-back")), "These flights are not what was asked for; I go back.")
    if offers:
        return click(offers[_best(scene, offers, match[1])])
    for identity, place in places.items():
        field = first(scene.all("text", id=identity))
        value = str(field.facts["value"])
        if value != place and not _is_airport(value, place):
            return fill(field, place)
        if value == place:
            suggestions = [line for line in scene.all("menuitem", "li", "div") if place in line.name]
            if suggestions:
                return click(suggestions[0])
            if scene.last_use(field, "fill") != len(scene.history) - 1:  # the suggestions are closed
                return fill(field, place)
    field = first(scene.all("text", id="datepicker"))
    if field.facts["value"] != match[4]:
        return pick_date(scene, field, match[4])
    return click(first(scene.all("button", id="search")))


def _is_airport(value: str, place: str) -> bool:
    """Whether a field contains an airport as the page writes it, "City, ST (CODE)", that has this city or code."""
    return place in value and value.endswith(")")


def _searched(scene: Scene, wanted: dict[str, str]) -> bool:
    """Whether the form contained what is wanted when its flights were searched for."""
    forms = [
        {str(line.facts["id"]): str(line.facts["value"]) for line in view if line.facts.get("id") in wanted}
        for view in scene.seen
    ]
    form = next((form for form in reversed(forms) if form), wanted)
    return all(form[name] == value or _is_airport(form[name], value) for name, value in wanted.items())


def _best(scene: Scene, offers: list[Line], what: str) -> int:
    if what == "cheapest":
        values = [int(matched(re.search(r"\$(\d+)", line.name))[1]) for line in offers]
    else:
        times = re.findall(r"(\d+)h (\d+)m", "\n".join(scene.texts))
        values = [int(hours) * 60 + int(minutes) for hours, minutes in times]
    return values.index(min(values))


EXPERTS: dict[str, Expert] = {
    "choose-date": choose_date,
    "choose-date-easy": choose_date,
    "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
    "book-flight": book_flight,
    "book-flight-nodelay": book_flight,
}
