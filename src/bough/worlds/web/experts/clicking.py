"""Experts for pages where the right things are clicked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bough.worlds.web.actions import Action, Line
from bough.worlds.web.experts.scene import (
    Advice,
    Expert,
    Scene,
    StuckError,
    call,
    check_then,
    click,
    first,
    hover,
    ordinal,
)


def only_button(scene: Scene) -> Advice:
    return click(first(scene.all("button")))


def named_button(scene: Scene) -> Advice:
    name = scene.quoted[0] if scene.quoted else scene.goal_match(r"button (ONE|TWO)")[1]
    return click(scene.named(name, "button"))


def buttons_in_turn(scene: Scene) -> Advice:
    one, two = (scene.named(name, "button") for name in re.findall(r"ONE|TWO", scene.goal))
    return click(two if _pressed(scene, one) >= 0 else one)


def delayed_buttons(scene: Scene) -> Advice:
    seconds = int(scene.goal_match(r"wait (\d+) second")[1])
    one = scene.named("ONE")
    since = _pressed(scene, one)
    if since < 0:
        return click(one)
    if sum(action.name == "wait" for action in scene.history[since:]) < seconds:
        return Advice(call("wait"), "I let the time pass.")
    return click(scene.named("TWO"))


def _pressed(scene: Scene, button: Line) -> int:
    """When a button was pressed, -1 if it was not; a click on its place leaves only the focus as a trace."""
    by_drag = [turn for turn, action in enumerate(scene.history) if presses_by_drag(action, button.number)]
    turns = [turn for turn, action in enumerate(scene.history) if action.name == "mouse_click"]
    by_place = [
        turn for turn in turns if _focused(scene.views[turn + 1], button) and not _focused(scene.seen[turn], button)
    ]
    return max([scene.last_use(button), *by_drag, *by_place])


def presses_by_drag(action: Action, number: int) -> bool:
    """Whether an element was dragged to itself, which is a click."""
    return action.name == "drag" and action.arguments["element"] == action.arguments["target"] == number


def _focused(view: Sequence[Line], button: Line) -> bool:
    return any(line.number == button.number and line.facts.get("focused") for line in view)


def link(scene: Scene) -> Advice:
    return click(scene.named(scene.quoted[0]))


def dialog(scene: Scene) -> Advice:
    wanted = scene.quoted[0]
    return click(scene.named("Close" if wanted == "x" else wanted, "button"))


def text_field(scene: Scene) -> Advice:
    fields = scene.all("text")
    return click(fields[ordinal(scene) - 1 if re.search(r"\d(st|nd|rd|th)", scene.goal) else 0])


def tab(scene: Scene) -> Advice:
    name = scene.goal_match(r"Tab #\d+")[0]
    return click(scene.named(name, "link"))


def link_in_tabs(scene: Scene) -> Advice:
    """Opens one tab or section after the other until the link is there."""
    wanted = scene.quoted[0]
    for line in scene.all("span"):
        if line.name == wanted:
            return click(line)
    headers = [line for line in scene.all("link", "tab") if re.fullmatch(r"(Tab #|Section #)?\d+", line.name)]
    closed = [line for line in headers if not line.facts.get("selected")]
    return click(_longest_unused(scene, closed), "The link is not here; I open the next one.")


def _longest_unused(scene: Scene, lines: list[Line]) -> Line:
    """The first element that was not clicked yet, else the one whose click is longest ago."""
    return min(lines, key=scene.last_use)


def collapsible(scene: Scene) -> Advice:
    section = first(scene.all("tab"))
    return click(scene.submit()) if section.facts.get("expanded") else click(section)


def menu(scene: Scene) -> Advice:
    """Opens one level after the other; the goal names the path."""
    path = scene.goal.removeprefix("Select ").split(">")
    shown = {line.name: line for line in scene.all("menuitem")}
    for name in reversed(path):
        if name in shown:
            return hover(shown[name]) if shown[name].facts.get("submenu") else click(shown[name])
    raise StuckError


def menu_with_button(scene: Scene) -> Advice:
    """The item may lie in a submenu, which the mouse opens."""
    items = scene.all("menuitem")
    if not items:
        return click(scene.named("Menu", "button"))
    for line in items:
        if line.name == scene.quoted[-1] or str(line.facts.get("icon")) in scene.goal.split():
            return click(line)
    opened = {action.arguments["element"] for action in scene.done("hover")}
    return hover(first(line for line in items if line.facts.get("submenu") and line.number not in opened))


def option(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Select (.*) and click Submit")[1]
    radio = scene.named(wanted, "radio")
    return click(scene.submit() if radio.facts.get("checked") else radio)


def checkboxes(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Select (.*) and click Submit")[1].split(", ")
    return check_then(scene.all("checkbox"), lambda box: box.name in wanted, scene.submit())


def widget(scene: Scene) -> Advice:
    return click(first(scene.all(scene.quoted[0])))


def color(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"the (\w+) colored")[1]
    return click(first(scene.all(color=wanted)))


def shades(scene: Scene) -> Advice:
    wanted = ("red", "green", "blue").index(scene.goal_match(r"shades of (\w+)")[1])
    for line in scene.all("span"):
        parts = [int(part) for part in re.findall(r"\d+", str(line.facts.get("color", "")))]
        chosen, right = line.facts.get("class") == "selected", len(parts) == 3 and max(parts) == parts[wanted]
        if right != chosen:
            return click(line, "This one has the most of the colour." if right else "This one does not belong here.")
    return click(scene.submit())


def ticket(scene: Scene) -> Advice:
    """Least or most of the price on the button, or of the duration above it."""
    durations = [re.fullmatch(r"(\d+)h (\d+)m", text) for text in scene.texts]
    minutes = [int(match[1]) * 60 + int(match[2]) for match in durations if match]
    buttons = [line for line in scene.all("button") if "$" in line.name]
    prices = [int(line.name.split("$")[1]) for line in buttons]
    pick = min if re.search("cheapest|shortest|least|lowest", scene.goal) else max
    values = minutes if "duration" in scene.goal else prices
    return click(buttons[values.index(pick(values))])


def ascending(scene: Scene) -> Advice:
    """The numbers are covered after the first click, so their places are remembered."""
    shown = [line for line in (scene.seen or [scene.lines])[0] if line.kind == "letter"]
    places = [line.facts for line in sorted(shown, key=lambda line: int(line.name))]
    wanted = places[len(scene.done("click"))]
    near = min(scene.elements, key=lambda line: abs(line.facts["x"] - wanted["x"]) + abs(line.facts["y"] - wanted["y"]))
    return click(near)


def coordinate(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"\(-?\d+,-?\d+\)")[0]
    return click(first(scene.all("circle", id=wanted)))


def tree(scene: Scene) -> Advice:
    """Opens folders until the name is there."""
    wanted = scene.quoted[0]
    for line in scene.all("li", "span"):
        if line.name == wanted:
            return click(line)
    folders = [line for line in scene.elements if "expandable-hitarea" in str(line.facts.get("class", ""))]
    return click(_longest_unused(scene, folders), "I open the next folder.")


def phone_book(scene: Scene) -> Advice:
    name, what = scene.goal_match(r"Find (.*) in the contact book and click on their (phone|email|address)").groups()
    if name in scene.texts:
        return click(first(scene.after_text(f"{what.capitalize()}:")))
    # Onwards to the last page, then back: an earlier turn may have gone past the right one.
    forth, back = (next((line for line in scene.all("link") if line.name == name), None) for name in "><")
    if forth is None or (back is not None and _going_back(scene)):
        forth = back
    return click(first([line for line in [forth] if line]), f"This is not {name}; I turn the page.")


def _going_back(scene: Scene) -> bool:
    """Whether the last page was shown since the first."""
    shown = [{line.name for line in view} & {"<", ">"} for view in scene.views]
    ends = [names for names in shown if len(names) == 1]
    return bool(ends) and ends[-1] == {"<"}


def pie(scene: Scene) -> Advice:
    """The items of a closed menu are there, but too small to be seen."""
    item = scene.named(scene.quoted[0])
    height = int(str(item.facts["size"]).split("x")[1])
    if height > 10:  # 24 in an open menu, up to 5 in a closed one
        return click(item)
    return click(first(line for line in scene.elements if line.name in "+-x" and line.name))


EXPERTS: dict[str, Expert] = {
    "click-test": only_button,
    "click-test-2": named_button,
    "click-test-transfer": named_button,
    "click-button": named_button,
    "unicode-test": named_button,
    "click-button-sequence": buttons_in_turn,
    "button-delay": delayed_buttons,
    "click-link": link,
    "click-dialog": dialog,
    "click-dialog-2": dialog,
    "focus-text": text_field,
    "focus-text-2": text_field,
    "click-tab": tab,
    "click-tab-2": link_in_tabs,
    "click-tab-2-easy": link_in_tabs,
    "click-tab-2-medium": link_in_tabs,
    "click-tab-2-hard": link_in_tabs,
    "click-collapsible": collapsible,
    "click-collapsible-nodelay": collapsible,
    "click-collapsible-2": link_in_tabs,
    "click-collapsible-2-nodelay": link_in_tabs,
    "click-menu": menu,
    "click-menu-2": menu_with_button,
    "click-option": option,
    "click-checkboxes": checkboxes,
    "click-checkboxes-large": checkboxes,
    "click-checkboxes-transfer": checkboxes,
    "click-widget": widget,
    "click-color": color,
    "click-shades": shades,
    "buy-ticket": ticket,
    "ascending-numbers": ascending,
    "grid-coordinate": coordinate,
    "navigate-tree": tree,
    "phone-book": phone_book,
    "click-pie": pie,
    "click-pie-nodelay": pie,
}
