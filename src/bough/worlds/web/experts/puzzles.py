"""Experts for pages that take a little thought: numbers, shapes, cards, a game."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from statistics import fmean

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, call, click, first


def odd_or_even(scene: Scene) -> Advice:
    """Each number stands between its two buttons."""
    for before, line, after in zip(scene.lines, scene.lines[1:], scene.lines[2:], strict=False):
        if not line.number and re.fullmatch(r"-?\d+", line.name):
            right = before if int(line.name) % 2 else after
            if "selected" not in str(right.facts.get("class", "")):
                return click(right, f"{line.name} is {right.name.lower()}.")
    return click(scene.submit())


def greatest_card(scene: Scene) -> Advice:
    """Turns every card once, then the greatest again."""
    cards = [line for line in scene.all("div") if "card" in str(line.facts.get("class", "")) or line.name.isdecimal()]
    values = {
        line.number: int(line.name)
        for view in (*scene.seen, scene.lines)
        for line in view
        if line.number and line.name.isdecimal()
    }
    for card in cards:
        if card.number not in values:
            return click(card, "I look at this card.")
    best = max(values, key=lambda number: values[number])
    card = first(card for card in cards if card.number == best)
    return click(scene.submit()) if card.name else click(card, "This one was the greatest.")


def generate(scene: Scene) -> Advice:
    """Draws until the number fits."""
    shown = next((int(text) for text in scene.texts if text.isdecimal()), None)
    bound = re.search(r"(less|greater) than (\d+)", scene.goal)
    if shown is not None:
        if bound:
            fits = shown < int(bound[2]) if bound[1] == "less" else shown > int(bound[2])
        else:
            fits = shown % 2 == ("odd" in scene.goal)
        if fits:
            return click(scene.submit())
    return click(scene.named("Generate"))


def stock(scene: Scene) -> Advice:
    limit = float(scene.goal_match(r"\$([\d.]+?)\.?$")[1])
    price = float(scene.text_match(r"Stock price: \$([\d.]+)")[1])
    if price <= limit:
        return click(scene.named("Buy"))
    return Advice(call("wait"), f"{price} is more than {limit}; I wait.")


def shape_kind(line: Line) -> str:
    if line.kind == "letter":
        return "digit" if line.name.isdecimal() else "letter"
    return {"rect": "rectangle", "polygon": "triangle"}.get(line.kind, line.kind)


def identify(scene: Scene) -> Advice:
    kind = shape_kind(first(line for line in scene.elements if line.kind != "button"))
    return click(scene.named("Number" if kind == "digit" else kind.capitalize(), "button"))


def fits_shape(line: Line, words: str) -> bool:
    """Whether a shape is what the words say: size, colour, kind."""
    width, height = map(int, str(line.facts["size"]).split("x"))
    for word in words.split():
        if word in ("large", "small"):
            # Letters are wide or narrow by themselves; their height tells the size.
            big = (height > 16) if line.kind == "letter" else (width > 14)
            if big != (word == "large"):
                return False
        elif word.rstrip("s") in ("letter", "digit", "circle", "rectangle", "triangle", "shape", "item"):
            kind = shape_kind(line)
            if word.rstrip("s") == "shape" and kind in ("letter", "digit"):
                return False
            if word.rstrip("s") not in ("shape", "item") and kind != word.rstrip("s"):
                return False
        elif re.fullmatch(r"\ws?", word):  # a letter or digit, perhaps several: "ys"
            if line.name != word[0]:
                return False
        elif line.facts.get("fill") != word:
            return False
    return True


def shape(scene: Scene) -> Advice:
    words = scene.goal_match(r"Click on an? (.*)")[1]
    return click(first(line for line in scene.elements if fits_shape(line, words)))


def count_shapes(scene: Scene) -> Advice:
    words = scene.goal_match(r"How many (.*) are there")[1]
    count = sum(fits_shape(line, words) for line in scene.elements if line.kind != "button")
    return click(scene.named(str(count), "button"))


def tic_tac_toe(scene: Scene) -> Advice:
    """The move that wins most often against the page's player."""
    cells, marks = scene.all("span"), marks_of(scene.lines)
    free = [place for place in (4, 0, 2, 6, 8, 1, 3, 5, 7) if marks[place] == " "]
    return click(cells[max(free, key=lambda place: _chance_after(marks, place))])


ROWS = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
RANDOM = 0.55  # how often the page's player takes any free place


def marks_of(lines: Sequence[Line]) -> str:
    """The nine places, row by row: X, O or a space."""
    classes = [str(line.facts.get("class")) for line in lines if line.kind == "span"]
    return "".join("X" if "mark-x" in name else "O" if "mark-o" in name else " " for name in classes)


def chance_to_win(marks: str) -> float:
    """How likely X, who is to move, wins with the best moves."""
    return max((_chance_after(marks, place) for place in range(9) if marks[place] == " "), default=0.0)


@cache
def _chance_after(marks: str, place: int) -> float:
    marks = _with(marks, place, "X")
    if _won(marks, "X"):
        return 1.0
    free = [place for place in range(9) if marks[place] == " "]
    if not free:
        return 0.0
    later = {place: _chance_if_o_took(_with(marks, place, "O")) for place in free}
    # Its other moves win if they can, else they prevent X from winning.
    best = next(
        (moves for player in "OX" if (moves := [p for p in free if _won(_with(marks, p, player), player)])), free
    )
    return RANDOM * fmean(later.values()) + (1 - RANDOM) * fmean(later[place] for place in best)


def _chance_if_o_took(marks: str) -> float:
    return 0.0 if _won(marks, "O") else chance_to_win(marks)


def _with(marks: str, place: int, player: str) -> str:
    return marks[:place] + player + marks[place + 1 :]


def _won(marks: str, player: str) -> bool:
    return any(all(marks[i] == player for i in row) for row in ROWS)


EXPERTS: dict[str, Expert] = {
    "odd-or-even": odd_or_even,
    "find-greatest": greatest_card,
    "generate-number": generate,
    "stock-market": stock,
    "identify-shape": identify,
    "click-shape": shape,
    "count-shape": count_shapes,
    "tic-tac-toe": tic_tac_toe,
}
