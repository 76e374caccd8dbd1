"""Experts for pages where something is written, chosen or set, and then sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from pydantic import JsonValue

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import (
    Advice,
    Expert,
    Scene,
    call,
    check_then,
    click,
    fill,
    fill_then,
    first,
    matched,
    ordinal,
    press,
)


def text(scene: Scene) -> Advice:
    return fill_then([(first(scene.all("text")), scene.quoted[0])], scene.submit())


def text_in_case(scene: Scene) -> Advice:
    word = scene.quoted[0]
    word = word.upper() if "upper case" in scene.goal else word.lower()
    return fill_then([(first(scene.all("text")), word)], scene.submit())


def password_twice(scene: Scene) -> Advice:
    return fill_then([(line, scene.quoted[0]) for line in scene.all("password")], scene.submit())


def login(scene: Scene) -> Advice:
    name, password = scene.quoted
    fields = [(first(scene.all("text")), name), (first(scene.all("password")), password)]
    return fill_then(fields, first(scene.all("button", id="subbtn")))


def login_under_popup(scene: Scene) -> Advice:
    """A message may lie over the page at any time; it goes first."""
    for line in scene.elements:
        if line.name.startswith("Cancel") and line.facts.get("id") != "subbtn":
            return click(line, "A message covers the page; I dismiss it.")
    return login(scene)


def date_field(scene: Scene) -> Advice:
    day = datetime.strptime(scene.goal_match(r"\d+/\d+/\d+")[0], "%m/%d/%Y")
    return fill_then([(first(scene.all("date", "text")), day.strftime("%Y-%m-%d"))], scene.submit())


def time_field(scene: Scene) -> Advice:
    time = datetime.strptime(scene.goal_match(r"\d+:\d+ [AP]M")[0], "%I:%M %p")
    return fill_then([(first(scene.all("time", "text")), time.strftime("%H:%M"))], scene.submit())


def choose(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Select (.*) from the (?:scroll )?list")[1].split(", ")
    box = first(scene.all("select"))
    if set(str(box.facts["value"]).split(", ")) != set(wanted):
        option: JsonValue = [*wanted] if len(wanted) > 1 else wanted[0]
        return Advice(call("select_option", str(box.number), option), f"I choose {', '.join(wanted)}.")
    return click(scene.submit())


def movie(scene: Scene) -> Advice:
    """Fields go by the text before them, or the one after where there is none, wherever they stand."""
    match = scene.goal_match(r"Search for (.*) movies directed by (.*) from year (\d+)")
    wanted = {"genre": match[1], "director": match[2], "year": match[3], "released": match[3]}
    labels_follow = scene.lines[0].number > 0 and not scene.lines[0].name
    fields = []
    for place, line in enumerate(scene.lines):
        if line.kind == "text":
            label = line.name or scene.lines[place + 1 if labels_follow else place - 1].name
            fields.append((line, next(text for word, text in wanted.items() if word in label.lower())))
    return fill_then(fields, first(line for line in scene.elements if line.kind != "text"))


def autocomplete(scene: Scene) -> Advice:
    """Writes the beginning and takes the suggestion with the right end."""
    field, start = first(scene.all("text")), scene.quoted[0]
    end = scene.quoted[1] if len(scene.quoted) > 1 else ""
    value = str(field.facts["value"])
    if value.startswith(start) and value.endswith(end) and scene.done("click"):
        return click(scene.submit())
    for line in scene.all("li", "menuitem", "div", "option"):
        if line.name.startswith(start) and line.name.endswith(end):
            return click(line)
    return fill(field, start)


def spinner(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Select (-?\d+) with")[1]
    return fill_then([(first(scene.all("text")), wanted)], scene.submit())


def slide(scene: Scene, wanted: list[int]) -> Advice | None:
    """Moves the handles with the keys, a fifth of the way at once while that is not too far; None when all is right."""
    handles, shown = _sliders(scene.lines)
    for index, (handle, value, goal) in enumerate(zip(handles, shown, wanted, strict=False)):
        if value == goal:
            continue
        if not handle.facts.get("focused"):
            return click(handle, "I take the slider.")
        leap = _leap(scene, index)
        key = ("PageUp", "ArrowRight") if value < goal else ("PageDown", "ArrowLeft")
        far = abs(goal - value) > (leap / 2 if leap else 3)
        return press(key[0] if far else key[1], f"The slider is at {value}, not yet at {goal}.")
    return None


def _sliders(lines: Sequence[Line]) -> tuple[list[Line], list[int]]:
    handles = [line for line in lines if "ui-slider-handle" in str(line.facts.get("class", ""))]
    return handles, [int(line.name) for line in lines if not line.number and re.fullmatch(r"-?\d+", line.name)]


def _leap(scene: Scene, index: int) -> int:
    """How far a page key has moved this slider, 0 if it was not tried."""
    views = [*scene.seen, scene.lines]
    moves = [
        abs(_sliders(views[turn + 1])[1][index] - _sliders(views[turn])[1][index])
        for turn, action in enumerate(scene.history)
        if action.name == "press" and str(action.arguments["key"]).startswith("Page")
    ]
    return max(moves, default=0)


def slider(scene: Scene) -> Advice:
    numbers = [int(number) for number in re.findall(r"-?\d+", scene.goal)]
    return slide(scene, numbers) or click(scene.submit())


def slider_and_box(scene: Scene) -> Advice:
    wanted = int(scene.goal_match(r"Select (-?\d+) with")[1])
    box = scene.all("checkbox")[ordinal(scene) - 1]
    return slide(scene, [wanted]) or check_then(scene.all("checkbox"), lambda line: line is box, scene.submit())


def radio_and_text(scene: Scene) -> Advice:
    places = [int(place) - 1 for place in re.findall(r"(\d)(?:st|nd|rd)", scene.goal)]
    radio, field = scene.all("radio")[places[0]], scene.all("text")[places[1]]
    if not radio.facts["checked"]:
        return click(radio)
    others = [(other, "") for other in scene.all("text") if other is not field]
    return fill_then([*others, (field, scene.quoted[0])], scene.submit())


def dropdown_and_button(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Choose (.*) from the dropdown")[1]
    if scene.all("li"):  # the open list covers the buttons
        return click(scene.named(wanted, "li"))
    box = first(scene.all("select"))
    if box.facts["value"] != wanted:
        return Advice(call("select_option", str(box.number), wanted), f"I choose {wanted}.")
    return click(scene.named(scene.quoted[0], "button"))


def agreement(scene: Scene) -> Advice:
    if not scene.quoted:
        return click(scene.named("Cancel"))
    field = first(scene.all("text"))
    if field.facts.get("disabled"):
        area = first(scene.all("textarea"))
        return Advice(call("scroll", "bottom", str(area.number)), "I read on to the end.")
    return fill_then([(field, scene.quoted[0])], scene.named(scene.quoted[1], "button"))


def color_code(scene: Scene) -> Advice:
    """Writes the code of the colour; the wheel follows."""
    parts = re.search(r"rgb\((\d+), (\d+), (\d+)\)", scene.goal)
    if parts:
        code = "".join(f"{int(part):02X}" for part in parts.groups())
    else:
        code = COLORS[scene.goal_match(r"Select (\w+) with")[1]]
    field = first(scene.all("text"))
    if field.facts["value"] != code:
        return fill(field, code)
    if scene.all("canvas"):  # the open picker may lie over the button
        return Advice(call("mouse_click", *CORNER), "I close the picker.")
    return click(scene.submit())


# Pages with a calendar.


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


CORNER = (150, 205)  # of the page, where nothing is
COLORS = {
    "black": "000000", "white": "FFFFFF", "aqua": "00FFFF", "blue": "0000FF", "gray": "808080", "green": "008000",
    "lime": "00FF00", "maroon": "800000", "navy": "000080", "olive": "808000", "purple": "800080", "red": "FF0000",
    "silver": "C0C0C0", "teal": "008080", "yellow": "FFFF00", "pink": "FFC0CB", "magenta": "FF00FF", "gold": "FFD700",
    "orange": "FFA500",
}  # fmt: skip

EXPERTS: dict[str, Expert] = {
    "enter-text": text,
    "enter-text-dynamic": text,
    "enter-text-2": text_in_case,
    "enter-password": password_twice,
    "login-user": login,
    "login-user-popup": login_under_popup,
    "enter-date": date_field,
    "enter-time": time_field,
    "choose-list": choose,
    "click-scroll-list": choose,
    "multi-layouts": movie,
    "multi-orderings": movie,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
    "use-spinner": spinner,
    "use-slider": slider,
    "use-slider-2": slider,
    "form-sequence": slider_and_box,
    "form-sequence-2": radio_and_text,
    "form-sequence-3": dropdown_and_button,
    "sign-agreement": agreement,
    "use-colorwheel": color_code,
    "use-colorwheel-2": color_code,
    "choose-date": choose_date,
    "choose-date-easy": choose_date,
    "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
    "book-flight": book_flight,
    "book-flight-nodelay": book_flight,
}
