"""Experts for pages that are told in free words: letters to be dealt with, synonyms, an order, an appointment."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.posts import answer, mark
from bough.worlds.web.experts.scene import Advice, Expert, Scene, call, check_then, click, fill, first

SYNONYMS = [
    set(words.split())
    for words in (
        "big large huge enormous gigantic", "small tiny little mini petite", "red scarlet crimson vermillion",
        "happy cheerful joyful gleeful delighted", "sad unhappy sorrowful miserable tragic",
        "angry mad furious irritated", "evil wicked immoral sinful corrupt depraved",
        "wrong incorrect mistaken erroneous", "real genuine actual", "strange odd peculiar unusual weird",
        "stop cease halt end finish", "scared terrified panicked fearful frightened afraid",
        "quiet calm peaceful serene mild", "old aged archaic", "love like adore favor", "kill murder assassinate",
        "keep retain preserve sustain maintain", "hide conceal camouflage", "hate despise loathe detest dislike",
        "funny humorous amusing comical laughable", "fat fleshy plump chubby", "stupid dumb dull unwise",
        "delicious savory delectable appetizing", "cut slice carve chop", "brave courageous fearless",
        "begin start initiate launch", "answer reply response", "television televisions TV TVs",
        "house home houses homes", "fire flame fires flames", "pig pork swine", "rabbit rabbits bunny bunnies",
        "car cars automobile automobiles vehicle vehicles",
    )
]  # fmt: skip


def similar(scene: Scene) -> Advice:
    words = scene.goal_match(r"similar to (.*) and click Submit")[1].split(", ")
    wanted = set(words).union(*(meaning for meaning in SYNONYMS if meaning & set(words)))
    return check_then(scene.all("checkbox"), lambda box: box.name in wanted, scene.submit())


def letter(scene: Scene) -> Advice:
    """Whose mail it is and what to do with it, from the names of the senders and some telling words."""
    inbox = (*scene.seen, scene.lines)[0]
    senders = {line.name.split()[0] for line in inbox if line.kind == "div" and line.name}
    told = re.sub(r'"[^"]*"', "", scene.goal)
    told = re.sub(r"\b([A-Z]\w+)s\b", lambda match: f"{match[1]}'s" if match[1] in senders else match[0], told)
    names = [name for name in _words(told) if name in senders]
    if scene.quoted:
        return answer(scene, names[0], "Reply", scene.quoted[0])
    other = [
        name for name in dict.fromkeys(re.findall(r"[A-Z][a-z]+", told)) if name in senders or f"to {name}" in told
    ]
    if len(other) > 1:
        sender, receiver = _from_whom_to_whom(told, other)
        return answer(scene, sender, "Forward", receiver)
    return mark(scene, names[0], "star" if IMPORTANT.search(told) else "trash")


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"[A-Z][a-z]+|\w+", text)))


IMPORTANT = re.compile(r"star|important|mark|flag|favou?rite|priorit|significan", re.IGNORECASE)


def _from_whom_to_whom(told: str, names: list[str]) -> tuple[str, str]:
    """The sender is the one with "from", "by" or an apostrophe; else the one who is not sent "to"."""
    for name in names:
        if re.search(rf"(?:from|by|that|of) {name}\b|{name}'s?\b|{name} sent|{name} wrote", told):
            return name, next(other for other in names if other != name)
    receiver = next((name for name in names if re.search(rf"\bto {name}\b", told)), names[-1])
    return next(name for name in names if name != receiver), receiver


def order_food(scene: Scene) -> Advice:
    """Dishes by their name, or as many as asked for of one that is of the right kind."""
    dishes = _dishes(scene)
    kind = re.search(r"Order (\d+) items that are (\S+)", scene.goal)
    if kind:
        wanted = {next(dish.name for dish in dishes if f"({kind[2]})" in dish.kinds): int(kind[1])}
    else:
        wanted = dict.fromkeys(scene.goal_match(r"item: (.*)")[1].split(", "), 1)
    for dish in dishes:
        if dish.quantity < wanted.get(dish.name, 0):
            return click(dish.plus, f"I order {dish.name}.")
        if dish.quantity > wanted.get(dish.name, 0):
            return click(dish.minus, f"That is too much of {dish.name}.")
    return click(scene.named("Order!"))


class Dish(NamedTuple):
    name: str
    kinds: str
    quantity: int
    minus: Line
    plus: Line


def _dishes(scene: Scene) -> list[Dish]:
    """A dish is its name, a line of its kinds, a minus, the number ordered if any, and a plus."""
    dishes = []
    for place, line in enumerate(scene.lines):
        if line.name == "+":
            minus = max(i for i in range(place) if scene.lines[i].name == "-")
            name, kinds = (past.name for past in scene.lines[minus - 2 : minus])
            quantity = int(scene.lines[place - 1].name) if place - minus > 1 else 0
            dishes.append(Dish(name, kinds, quantity, scene.lines[minus], line))
    return dishes


def appointment(scene: Scene) -> Advice:
    """Drags over as many half hours as the event lasts, inside the window, and names it."""
    length = scene.goal_match(r"Create a ([\d.]+) (hour|min)")
    slots = round(float(length[1]) * (2 if length[2] == "hour" else 1 / 30))
    begin = scene.goal_match(r"between (\d+)([AP])M")
    opening = _half_hour(begin[1], None, begin[2].lower())
    starts = range(opening, opening + 8 - slots + 1)
    if fields := scene.all("text"):
        begun, ended = _time_shown(scene)
        if begun not in starts or ended - begun != slots:
            return click(scene.named("Cancel"), "This is not the right time.")
        name = scene.quoted[0]
        return fill(fields[0], name) if fields[0].facts["value"] != name else click(scene.named("Create"))
    # Where another event lies over a half hour, a drag has no effect, so that another time is tried next.
    tried = Counter(start for start, end in _drags(scene) if end - start == slots - 1)
    start = min(starts, key=lambda start: tried[start])
    ends = [first(scene.all(id=f"hh-{slot}")) for slot in (start, start + slots - 1)]
    return Advice(call("drag", *(str(line.number) for line in ends)), "I take this time.")


def _time_shown(scene: Scene) -> tuple[int, int]:
    """The half hours at which the new event begins and ends, as the page says: "12:30pm to 2pm"."""
    time = r"(\d+)(:30)?([ap])m"
    shown = scene.text_match(f"{time} to {time}").groups()
    begin, end = (_half_hour(*part) for part in (shown[:3], shown[3:]))
    return begin, end


def _half_hour(hour: str, minutes: str | None, half: str) -> int:
    return 2 * (int(hour) % 12 + (12 if half == "p" else 0)) + (minutes is not None)


def _drags(scene: Scene) -> list[tuple[int, int]]:
    """The half hours that were dragged over, each time from the first to the last; a click takes one of them."""
    slots = {
        str(line.number): int(str(line.facts["id"])[3:])
        for view in scene.views
        for line in view
        if str(line.facts.get("id", "")).startswith("hh-")
    }
    taken = []
    for action in scene.history:
        ends = [slots.get(str(action.arguments.get(name))) for name in ("element", "target")]
        found = [end for end in ends[: 2 if action.name == "drag" else 1] if end is not None]
        if action.name in ("drag", "click") and found:
            taken.append((min(found), max(found)))
    return taken


EXPERTS: dict[str, Expert] = {
    "click-checkboxes-soft": similar,
    "email-inbox-nl-turk": letter,
    "email-inbox-forward-nl": letter,
    "email-inbox-forward-nl-turk": letter,
    "order-food": order_food,
    "daily-calendar": appointment,
}
