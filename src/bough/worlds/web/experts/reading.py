"""Experts for pages where something is read or worked out, and the answer written."""

from __future__ import annotations

import re

from bough.worlds.web.experts.scene import (
    Advice,
    Expert,
    Scene,
    StuckError,
    call,
    click,
    fill,
    fill_then,
    first,
    ordinal,
    press,
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
    words = re.findall(r"[^\s.,]+", first_text(scene))
    return _answer(scene, words[ordinal(scene) - 1])


def first_text(scene: Scene) -> str:
    if not scene.texts:
        raise StuckError
    return scene.texts[0]


def copy(scene: Scene) -> Advice:
    areas = scene.all("textarea")
    area = areas[ordinal(scene) - 1] if len(areas) > 1 else areas[0]
    return _answer(scene, str(scene.at_first(area).facts["value"]))


def last_word(scene: Scene) -> Advice:
    text = str(scene.at_first(first(scene.all("textarea"))).facts["value"])
    return _answer(scene, re.findall(r"[^\s.,]+", text)[-1])


def scroll(scene: Scene) -> Advice:
    area = first(scene.all("textarea"))
    end = "bottom" if "bottom" in scene.goal else "top"
    if area.facts.get("scrolled") not in (None, "100%" if end == "bottom" else "0%"):
        return Advice(call("scroll", end, str(area.number)), f"I scroll to the {end}.")
    return click(scene.submit())


def retype(scene: Scene) -> Advice:
    return _answer(scene, first_text(scene))


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
    count = sum("addition-block" in str(line.facts.get("class", "")) for line in scene.elements)
    return _answer(scene, str(count))


def guess(scene: Scene) -> Advice:
    """Halves what is left after each "higher" or "lower"."""
    low, high = map(int, scene.goal_match(r"between (\d+)-(\d+)").groups())
    for text in ["\n".join(line.name for line in view if not line.number) for view in (*scene.seen, scene.lines)]:
        told = re.search(r"number is (lower|higher|lesser|greater|less|more) than (\d+)", text)
        if told and told[1] in ("higher", "greater", "more"):
            low = max(low, int(told[2]) + 1)
        elif told:
            high = min(high, int(told[2]) - 1)
    field = first(scene.all("number", "text"))
    middle = str((low + high) // 2)
    return click(scene.submit()) if field.facts["value"] == middle else fill(field, middle)


def search(scene: Scene) -> Advice:
    """Three results a page; the pages are turned until the wanted one is there."""
    wanted = ordinal(scene)
    field = first(scene.all("text"))
    if field.facts["value"] != scene.quoted[0]:
        return fill(field, scene.quoted[0])
    links = [line for line in scene.all("link") if line.name not in ("<", ">", "") and not line.name.isdecimal()]
    button = scene.named("Search", "button")
    searched = scene.last_use(button)
    if not links or searched < scene.last_use(field, "fill"):
        return click(button)
    page = str((wanted - 1) // 3 + 1)
    number = scene.named(page, "link")
    turned = _turned(scene, searched)
    if scene.last_use(number) == turned if turned else page == "1":
        return click(links[(wanted - 1) % 3])
    return click(number, f"It is on page {page}.")


def _turned(scene: Scene, since: int) -> int:
    """When a page was last turned after `since`; 0 if it was not."""
    numbers = {line.number for view in scene.views for line in view if line.name in ("<", ">", "1", "2", "3")}
    clicks = [turn for turn, a in enumerate(scene.history) if a.name == "click" and a.arguments["element"] in numbers]
    return max((turn for turn in clicks if turn > since), default=0)


def highlight(scene: Scene) -> Advice:
    texts = [text for text in scene.texts if text]
    text = texts[ordinal(scene) - 1] if "paragraph below" not in scene.goal else texts[0]
    if scene.last is None or (scene.last.name, scene.last.arguments.get("text")) != ("select_text", text):
        return Advice(call("select_text", text), "I mark the text.")
    return click(scene.submit())


def terminal(scene: Scene) -> Advice:
    """Lists the files, then removes the one that the goal describes."""
    screen = first(scene.all("div", id="terminal")).name
    if screen.rpartition("user$")[2].strip():
        return press("Enter", "There is something in the line; I send it off.")
    found = re.findall(r"user\$ ls (.*?) (?=user\$)", screen)
    if not found:
        return Advice(call("type", "ls\n"), "I list the files.")
    listed = found[-1].split()
    ending = re.search(r"ending with the extension (\S+?)\.?$|extension (\.\w+)", scene.goal)
    if "no file extension" in scene.goal:
        name = next(file for file in listed if "." not in file)
    elif ending:
        name = next(file for file in listed if file.endswith((ending[1] or ending[2]).strip(".")))
    else:
        raise StuckError
    return Advice(call("type", f"rm {name}\n"), f"{name} is the one.")


EXPERTS: dict[str, Expert] = {
    "read-table": read_table,
    "read-table-2": read_table_twice,
    "find-word": word,
    "copy-paste": copy,
    "copy-paste-2": copy,
    "scroll-text": last_word,
    "scroll-text-2": scroll,
    "text-transform": retype,
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "visual-addition": blocks,
    "guess-number": guess,
    "search-engine": search,
    "highlight-text": highlight,
    "highlight-text-2": highlight,
    "terminal": terminal,
}
