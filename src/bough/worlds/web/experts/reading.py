"""Experts for pages where something is read, counted or worked out, and the answer written or clicked."""

from __future__ import annotations

import re

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import (
    Advice,
    Expert,
    Scene,
    advice,
    click,
    fill,
    fill_then,
    first,
)


def _answer(scene: Scene, text: str) -> Advice:
    return fill_then([(first(scene.all("text", "number")), text)], scene.submit())


def _table(scene: Scene) -> dict[str, str]:
    rows = [text.split(" | ") for text in scene.texts if " | " in text]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def read_table(scene: Scene) -> Advice:
    return _answer(scene, _table(scene)[scene.goal_match(r"value of (.*) into")[1]])


def read_table_twice(scene: Scene) -> Advice:
    table, fields = _table(scene), []
    for label, line in zip(scene.lines, scene.lines[1:], strict=False):
        if line.kind == "text":
            fields.append((line, table[(line.name or label.name).rstrip(":")]))
    return fill_then(fields, scene.submit())


def word(scene: Scene) -> Advice:
    return _answer(scene, re.findall(r"[^\s.,]+", scene.texts[0])[scene.ordinal() - 1])


def copy(scene: Scene) -> Advice:
    areas = scene.all("textarea")
    area = areas[scene.ordinal() - 1] if len(areas) > 1 else areas[0]
    return _answer(scene, str(scene.at_first(area).facts["value"]))


def last_word(scene: Scene) -> Advice:
    text = str(scene.at_first(first(scene.all("textarea"))).facts["value"])
    return _answer(scene, re.findall(r"[^\s.,]+", text)[-1])


def scroll(scene: Scene) -> Advice:
    area = first(scene.all("textarea"))
    end = "bottom" if "bottom" in scene.goal else "top"
    if area.facts.get("scrolled") not in (None, "100%" if end == "bottom" else "0%"):
        return advice(f"I scroll to the {end}.", "scroll", end, str(area.number))
    return click(scene.submit())


def retype(scene: Scene) -> Advice:
    return _answer(scene, scene.texts[0])


def highlight(scene: Scene) -> Advice:
    texts = [text for text in scene.texts if text]
    text = texts[scene.ordinal() - 1] if "paragraph below" not in scene.goal else texts[0]
    if not scene.history or scene.history[-1].arguments != {"text": text}:
        return advice("I mark the text.", "select_text", text)
    return click(scene.submit())


def arithmetic(scene: Scene) -> Advice:
    left, sign, right = scene.text_match(r"(-?\d+) ?([-+x×*]) ?(-?\d+) ?=").groups()
    a, b = int(left), int(right)
    return _answer(scene, str({"+": a + b, "-": a - b}.get(sign, a * b)))


def algebra(scene: Scene) -> Advice:
    """One step undoes the other side: a + x = c, x - b = c, and so on."""
    a, sign, b, c = scene.text_match(r"(-?\w+) ([-+]) (-?\w+) = (-?\d+)").groups()
    if a == "x":
        x = int(c) - int(b) if sign == "+" else int(c) + int(b)
    else:
        x = int(c) - int(a) if sign == "+" else int(a) - int(c)
    return _answer(scene, str(x))


def blocks(scene: Scene) -> Advice:
    return _answer(scene, str(sum("addition-block" in str(line.facts.get("class", "")) for line in scene.elements)))


def guess(scene: Scene) -> Advice:
    """Halves what is left after each "higher" or "lower"."""
    low, high = map(int, scene.goal_match(r"between (\d+)-(\d+)").groups())
    for view in scene.views:
        text = "\n".join(line.name for line in view if not line.number)
        told = re.search(r"number is (lower|higher|lesser|greater|less|more) than (\d+)", text)
        if told and told[1] in ("higher", "greater", "more"):
            low = max(low, int(told[2]) + 1)
        elif told:
            high = min(high, int(told[2]) - 1)
    field = first(scene.all("number", "text"))
    middle = str((low + high) // 2)
    return click(scene.submit()) if field.facts["value"] == middle else fill(field, middle)


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
    shown = [line for view in scene.views for line in view if line.number and line.name.isdecimal()]
    values = {line.number: int(line.name) for line in shown}
    for card in cards:
        if card.number not in values:
            return click(card, "I look at this card.")
    best = max(values, key=lambda number: values[number])
    card = first(card for card in cards if card.number == best)
    return click(scene.submit()) if card.name else click(card, "This one was the greatest.")


def generate(scene: Scene) -> Advice:
    """Draws until the number fits."""
    shown = [int(text) for text in scene.texts if text.isdecimal()]
    bound = re.search(r"(less|greater) than (\d+)", scene.goal)
    if bound:
        fits = [number < int(bound[2]) if bound[1] == "less" else number > int(bound[2]) for number in shown]
    else:
        fits = [number % 2 == ("odd" in scene.goal) for number in shown]
    return click(scene.submit() if fits[:1] == [True] else scene.named("Generate"))


def stock(scene: Scene) -> Advice:
    limit = float(scene.goal_match(r"\$([\d.]+?)\.?$")[1])
    price = float(scene.text_match(r"Stock price: \$([\d.]+)")[1])
    return click(scene.named("Buy")) if price <= limit else advice(f"{price} is more than {limit}; I wait.", "wait")


def _kind(line: Line) -> str:
    if line.kind == "letter":
        return "digit" if line.name.isdecimal() else "letter"
    return {"rect": "rectangle", "polygon": "triangle"}.get(line.kind, line.kind)


def _is_shape(line: Line, words: str) -> bool:
    """Whether a shape is what the words say: size, colour, kind."""
    width, height = map(int, str(line.facts["size"]).split("x"))
    # Letters are wide or narrow by themselves; their height tells the size.
    size = "large" if (height > 16 if line.kind == "letter" else width > 14) else "small"
    kind = _kind(line)
    said = {size, kind, "item", str(line.facts.get("fill"))}
    said |= {line.name} if kind in ("letter", "digit") else {"shape"}
    return all(word in said or word.removesuffix("s") in said for word in words.split())


def identify(scene: Scene) -> Advice:
    kind = _kind(first(line for line in scene.elements if line.kind != "button"))
    return click(scene.named("Number" if kind == "digit" else kind.capitalize(), "button"))


def shape(scene: Scene) -> Advice:
    words = scene.goal_match(r"Click on an? (.*)")[1]
    return click(first(line for line in scene.elements if _is_shape(line, words)))


def count_shapes(scene: Scene) -> Advice:
    words = scene.goal_match(r"How many (.*) are there")[1]
    count = sum(_is_shape(line, words) for line in scene.elements if line.kind != "button")
    return click(scene.named(str(count), "button"))


EXPERTS: dict[str, Expert] = {
    "read-table": read_table,
    "read-table-2": read_table_twice,
    "find-word": word,
    **dict.fromkeys(("copy-paste", "copy-paste-2"), copy),
    "scroll-text": last_word,
    "scroll-text-2": scroll,
    "text-transform": retype,
    **dict.fromkeys(("highlight-text", "highlight-text-2"), highlight),
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "visual-addition": blocks,
    "guess-number": guess,
    "odd-or-even": odd_or_even,
    "find-greatest": greatest_card,
    "generate-number": generate,
    "stock-market": stock,
    "identify-shape": identify,
    "click-shape": shape,
    "count-shape": count_shapes,
}
