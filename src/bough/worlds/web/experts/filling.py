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
    advice,
    check_then,
    click,
    fill,
    fill_then,
    first,
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
    """A message may lie over the page at any time; it goes first."""
    for line in scene.elements:
        if line.name.startswith("Cancel") and line.facts.get("id") != "subbtn":
            return click(line, "A message covers the page; I dismiss it.")
    name, password = scene.quoted
    fields = [(first(scene.all("text")), name), (first(scene.all("password")), password)]
    return fill_then(fields, first(scene.all("button", id="subbtn")))


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
        return advice(f"I choose {', '.join(wanted)}.", "select_option", str(box.number), option)
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
    if value.startswith(start) and value.endswith(end) and any(action.name == "click" for action in scene.history):
        return click(scene.submit())
    for line in scene.all("li", "menuitem", "div", "option"):
        if line.name.startswith(start) and line.name.endswith(end):
            return click(line)
    return fill(field, start)


def spinner(scene: Scene) -> Advice:
    return fill_then([(first(scene.all("text")), scene.goal_match(r"Select (-?\d+) with")[1])], scene.submit())


def _slide(scene: Scene, wanted: list[int]) -> Advice | None:
    """Moves the handles with the keys, a fifth of the way at once while that is not too far; None when all is right."""
    handles = [line for line in scene.lines if "ui-slider-handle" in str(line.facts.get("class", ""))]
    for index, (handle, value, goal) in enumerate(zip(handles, _shown(scene.lines), wanted, strict=False)):
        if value == goal:
            continue
        if not handle.facts.get("focused"):
            return click(handle, "I take the slider.")
        leaps = [  # of the page keys that were pressed
            abs(_shown(scene.views[turn + 1])[index] - _shown(scene.views[turn])[index])
            for turn, action in enumerate(scene.history)
            if action.name == "press" and str(action.arguments["key"]).startswith("Page")
        ]
        far = abs(goal - value) > (max(leaps) / 2 if any(leaps) else 3)
        keys = ("PageUp", "ArrowRight") if value < goal else ("PageDown", "ArrowLeft")
        return advice(f"The slider is at {value}, not yet at {goal}.", "press", keys[0] if far else keys[1])
    return None


def _shown(lines: Sequence[Line]) -> list[int]:
    """The values of the sliders."""
    return [int(line.name) for line in lines if not line.number and re.fullmatch(r"-?\d+", line.name)]


def slider(scene: Scene) -> Advice:
    return _slide(scene, [int(number) for number in re.findall(r"-?\d+", scene.goal)]) or click(scene.submit())


def slider_and_box(scene: Scene) -> Advice:
    wanted = int(scene.goal_match(r"Select (-?\d+) with")[1])
    box = scene.all("checkbox")[scene.ordinal() - 1]
    return _slide(scene, [wanted]) or check_then(scene.all("checkbox"), lambda line: line is box, scene.submit())


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
        return advice(f"I choose {wanted}.", "select_option", str(box.number), wanted)
    return click(scene.named(scene.quoted[0], "button"))


def agreement(scene: Scene) -> Advice:
    if not scene.quoted:
        return click(scene.named("Cancel"))
    field = first(scene.all("text"))
    if field.facts.get("disabled"):
        return advice("I read on to the end.", "scroll", "bottom", str(first(scene.all("textarea")).number))
    return fill_then([(field, scene.quoted[0])], scene.named(scene.quoted[1], "button"))


def choose_date(scene: Scene) -> Advice:
    """Opens the calendar of the field, turns to the month, takes the day."""
    wanted = scene.goal_match(r"\d+/\d+/\d+")[0]
    field, day = first(scene.all("text")), datetime.strptime(wanted, "%m/%d/%Y")
    days = [line for line in scene.all("link") if line.name.isdecimal()]
    if not days and field.facts["value"] == wanted:  # an open calendar covers the button
        return click(scene.submit())
    if not days and scene.history and scene.last_click(field) == len(scene.history) - 1:
        return advice("The calendar opens when the field gets the focus, so I leave it first.", "press", "Tab")
    if not days:
        return click(field, "I open the calendar.")
    shown = datetime.strptime(scene.text_match(r"[A-Z][a-z]+ \d{4}")[0], "%B %Y")
    if (shown.year, shown.month) == (day.year, day.month):
        return click(first(line for line in days if line.name == str(day.day)))
    turn = "Prev" if (shown.year, shown.month) > (day.year, day.month) else "Next"
    return click(scene.named(turn, "link"), f"{shown:%B %Y} is not the month.")


EXPERTS: dict[str, Expert] = {
    **dict.fromkeys(("enter-text", "enter-text-dynamic"), text),
    "enter-text-2": text_in_case,
    "enter-password": password_twice,
    **dict.fromkeys(("login-user", "login-user-popup"), login),
    "enter-date": date_field,
    "enter-time": time_field,
    **dict.fromkeys(("choose-list", "click-scroll-list"), choose),
    **dict.fromkeys(("multi-layouts", "multi-orderings"), movie),
    **dict.fromkeys(("use-autocomplete", "use-autocomplete-nodelay"), autocomplete),
    "use-spinner": spinner,
    **dict.fromkeys(("use-slider", "use-slider-2"), slider),
    "form-sequence": slider_and_box,
    "form-sequence-2": radio_and_text,
    "form-sequence-3": dropdown_and_button,
    "sign-agreement": agreement,
    **dict.fromkeys(("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay"), choose_date),
}
