"""Experts for pages where the right things are clicked: buttons, tabs, menus, boxes, mail, posts."""

from __future__ import annotations

import re

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import (
    Advice,
    Expert,
    Scene,
    StuckError,
    advice,
    check_then,
    click,
    fill,
    first,
    has_class,
    hover,
)


def only_button(scene: Scene) -> Advice:
    return click(first(scene.all("button")))


def named_button(scene: Scene) -> Advice:
    name = scene.quoted[0] if scene.quoted else scene.goal_match(r"button (ONE|TWO)")[1]
    return click(scene.named(name, "button"))


def buttons_in_turn(scene: Scene) -> Advice:
    one, two = (scene.named(name, "button") for name in re.findall(r"ONE|TWO", scene.goal))
    return click(two if scene.last_click(one) >= 0 else one)


def link(scene: Scene) -> Advice:
    return click(scene.named(scene.quoted[0]))


def dialog(scene: Scene) -> Advice:
    wanted = scene.quoted[0]
    return click(scene.named("Close" if wanted == "x" else wanted, "button"))


def text_field(scene: Scene) -> Advice:
    fields = scene.all("text")
    return click(fields[scene.ordinal() - 1 if re.search(r"\d(st|nd|rd|th)", scene.goal) else 0])


def tab(scene: Scene) -> Advice:
    return click(scene.named(scene.goal_match(r"Tab #\d+")[0], "link"))


def link_in_tabs(scene: Scene) -> Advice:
    """Opens one tab or section after the other until the link is there; the one that is longest ago first."""
    wanted = scene.quoted[0]
    for line in scene.all("span"):
        if line.name == wanted:
            return click(line)
    headers = [line for line in scene.all("link", "tab") if re.fullmatch(r"(Tab #|Section #)?\d+", line.name)]
    closed = [line for line in headers if not line.facts.get("selected")]
    return click(min(closed, key=scene.last_click), "The link is not here; I open the next one.")


def tree(scene: Scene) -> Advice:
    """Opens folders until the name is there."""
    wanted = scene.quoted[0]
    for line in scene.all("li", "span"):
        if line.name == wanted:
            return click(line)
    folders = [line for line in scene.elements if has_class(line, "expandable-hitarea")]
    return click(min(folders, key=scene.last_click), "I open the next folder.")


def collapsible(scene: Scene) -> Advice:
    section = first(scene.all("tab"))
    return click(scene.submit()) if section.facts.get("expanded") else click(section)


def menu(scene: Scene) -> Advice:
    """Opens one level after the other; the goal names the path."""
    shown = {line.name: line for line in scene.all("menuitem")}
    for name in reversed(scene.goal.removeprefix("Select ").split(">")):
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
    opened = {action.arguments["element"] for action in scene.history if action.name == "hover"}
    return hover(first(line for line in items if line.facts.get("submenu") and line.number not in opened))


def option(scene: Scene) -> Advice:
    radio = scene.named(scene.goal_match(r"Select (.*) and click Submit")[1], "radio")
    return click(scene.submit() if radio.facts.get("checked") else radio)


def checkboxes(scene: Scene) -> Advice:
    wanted = scene.goal_match(r"Select (.*) and click Submit")[1].split(", ")
    return check_then(scene.all("checkbox"), lambda box: box.name in wanted, scene.submit())


def widget(scene: Scene) -> Advice:
    return click(first(scene.all(scene.quoted[0])))


def color(scene: Scene) -> Advice:
    return click(first(scene.all(color=scene.goal_match(r"the (\w+) colored")[1])))


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


def coordinate(scene: Scene) -> Advice:
    return click(first(scene.all("circle", id=scene.goal_match(r"\(-?\d+,-?\d+\)")[0])))


def sort_numbers(scene: Scene) -> Advice:
    """Puts the first number that is out of place before the one that is there."""
    items = scene.all("li")
    ordered = sorted(items, key=lambda line: int(line.name))
    for there, wanted in zip(items, ordered, strict=True):
        if there is not wanted:
            return advice(f"{wanted.name} belongs higher.", "drag", str(wanted.number), str(there.number))
    return click(scene.submit())


SPOTS = (
    "top left", "top center", "top right", "center left", "center", "center right",
    "bottom left", "bottom center", "bottom right",
)  # fmt: skip


def drag_item(scene: Scene) -> Advice:
    """Onto the item that stands where it should go."""
    items = scene.all("li")
    name = scene.goal_match(r"Drag (.*?) (?:to|up|down|left|right)")[1]
    item = scene.named(name)
    if re.search(r"\d(st|nd|rd|th)", scene.goal):
        target = items[scene.ordinal() - 1]
    elif spot := re.search(r"to the ([a-z ]+)\.", scene.goal):
        target = items[SPOTS.index(spot[1])] if spot[1] in SPOTS else items[0 if spot[1] == "top" else -1]
    else:
        row = 3 if len(items) == 9 else 1
        step = {"up": -row, "down": row, "left": -1, "right": 1}[scene.goal_match(r"\b(up|down|left|right)\b")[1]]
        target = items[items.index(item) + step]
    return advice(f"I drag {name} there.", "drag", str(item.number), str(target.number))


# Mail: find the sender's row, then the icon in it, or open it and answer.


def mail(scene: Scene) -> Advice:
    """Delete, star, reply to, or forward the mail by somebody. What is open by mistake is closed first."""
    sender = scene.goal_match(r"email by (.+?) and ")[1]  # a name may have a hyphen or a space
    if "reply" in scene.goal:
        return _answer(scene, sender, "reply", scene.quoted[0])
    if "forward" in scene.goal:
        return _answer(scene, sender, "forward", scene.goal_match(r"forward that email to (.+?)\.")[1])
    if opened := _with_id(scene, "close-reply", "close-forward", "search-cancel", "close-email"):
        return click(opened[0], "I go back to the inbox.")
    icon = "star" if "star icon" in scene.goal else "trash"
    return click(first(line for line in _row(scene, sender) if has_class(line, icon)))


def _answer(scene: Scene, sender: str, form: str, text: str) -> Advice:
    """Opens the mail, then its form, fills it in and sends it."""
    if wrong := _with_id(scene, "close-forward" if form == "reply" else "close-reply", "search-cancel"):
        return click(wrong[0], "This is not the right place; I go back.")
    if send := _with_id(scene, f"send-{form}"):
        if form == "reply" and f"to: {sender}" not in scene.texts:
            return click(_with_id(scene, "close-reply")[0], "This is not the right mail; I go back.")
        field = scene.all("text", "textarea")[0]
        return fill(field, text) if field.facts["value"] != text else click(send[0])
    if close := _with_id(scene, "close-email"):
        if f" {sender} " in f" {' '.join(' '.join(scene.texts).split())} ":
            return click(scene.named(form.capitalize()))
        return click(close[0], "This is not the right mail; I go back.")
    return click(_row(scene, sender)[0])


def _row(scene: Scene, sender: str) -> list[Line]:
    """A sender's mail in the inbox and its icons; empty if it is not shown."""
    rows = [i for i, line in enumerate(scene.elements) if line.kind == "div" and line.name.startswith(f"{sender} ")]
    return scene.elements[rows[0] : rows[0] + 3] if rows else []


def _with_id(scene: Scene, *identities: str) -> list[Line]:
    return [line for line in scene.elements if line.facts.get("id") in identities]


# Posts: the icons after each user's name.


def _posts(scene: Scene) -> list[tuple[str, list[Line]]]:
    """Each post's user and its icons."""
    posts: list[tuple[str, list[Line]]] = []
    for line in scene.lines:
        user = None if line.number else re.search(r"@\w+", line.name)
        if user:
            posts.append((user[0], []))
        elif line.number and posts:
            posts[-1][1].append(line)
    return posts


def post(scene: Scene) -> Advice:
    user, button = scene.goal_match(r"For the user (@\w+), click on the \"(.*)\" button").groups()
    for name, icons in _posts(scene):
        more = [line for line in icons if has_class(line, "more")]
        if items := [line for line in icons if line.kind == "li"]:  # the menu of one post at a time is open
            right = [line for line in items if name == user and line.name.startswith(button)]
            return click(right[0]) if right else click(more[0], "This menu is not the right one; I close it.")
    icons = next(icons for name, icons in _posts(scene) if name == user)
    direct = [line for line in icons if has_class(line, button.lower().split()[0])]
    more = [line for line in icons if has_class(line, "more")]
    return click(direct[0]) if direct else click(more[0], "It must be among the others.")


def posts_by(scene: Scene) -> Advice:
    """The same icon on all posts of a user, or on as many as the goal says."""
    button, user = scene.goal_match(r"Click the \"(.*)\" button on .* by (@\w+)").groups()
    amount = re.search(r"on (\d+) posts?", scene.goal)
    icons = [line for name, some in _posts(scene) for line in some if name == user and has_class(line, button.lower())]
    wanted = icons[: int(amount[1])] if amount else icons
    for icon in [icon for _, some in _posts(scene) for icon in some if icon.facts.get("class")]:
        if has_class(icon, "active") != (icon in wanted):
            return click(icon)
    return click(scene.submit())


EXPERTS: dict[str, Expert] = {
    "click-test": only_button,
    **dict.fromkeys(("click-test-2", "click-test-transfer", "click-button", "unicode-test"), named_button),
    "click-button-sequence": buttons_in_turn,
    "click-link": link,
    **dict.fromkeys(("click-dialog", "click-dialog-2"), dialog),
    **dict.fromkeys(("focus-text", "focus-text-2"), text_field),
    "click-tab": tab,
    **dict.fromkeys(
        ("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard", "click-collapsible-2",
         "click-collapsible-2-nodelay"),
        link_in_tabs,
    ),
    **dict.fromkeys(("click-collapsible", "click-collapsible-nodelay"), collapsible),
    "click-menu": menu,
    "click-menu-2": menu_with_button,
    "click-option": option,
    **dict.fromkeys(("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer"), checkboxes),
    "click-widget": widget,
    "click-color": color,
    "click-shades": shades,
    "buy-ticket": ticket,
    "grid-coordinate": coordinate,
    "navigate-tree": tree,
    "drag-sort-numbers": sort_numbers,
    **dict.fromkeys(("drag-items", "drag-items-grid"), drag_item),
    **dict.fromkeys(
        ("email-inbox", "email-inbox-delete", "email-inbox-forward", "email-inbox-important", "email-inbox-noscroll",
         "email-inbox-reply", "email-inbox-star-reply"),
        mail,
    ),
    "social-media": post,
    **dict.fromkeys(("social-media-all", "social-media-some"), posts_by),
}  # fmt: skip
