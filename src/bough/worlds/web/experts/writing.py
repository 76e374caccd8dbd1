"""The expert of the text editor: it marks the text and gives it a style or a colour.

After any other actions, styles may be anywhere and the text may have changed. Then it deletes everything and
writes the text piece by piece, each with the style that it should have: the buttons show the style at the cursor.
"""

from __future__ import annotations

import re

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, call, click, first, press

STYLES = {"bold": "ql-bold", "italics": "ql-italic", "underlined": "ql-underline"}
COLORS = {
    "red": "rgb(230, 0, 0)", "orange": "rgb(255, 153, 0)", "yellow": "rgb(255, 255, 0)", "green": "rgb(0, 138, 0)",
    "blue": "rgb(0, 102, 204)", "purple": "rgb(153, 51, 255)",
}  # fmt: skip
PICKER = "ql-picker-label"
Piece = tuple[str, str]  # a text and its style or colour, "none" for no style


def editor(scene: Scene) -> Advice:
    """Marks and styles the text on a fresh page, else writes it again."""
    page = first(line for line in scene.views[0] if line.kind == "div" and line.name)
    word = re.search(r"give the text (.*?) the (?:style|color)", scene.goal)
    target, style = word[1] if word else page.name, scene.goal_match(r"the (?:style|color) (\w+)")[1]
    if not scene.history:
        return Advice(call("select_text", target), "I mark the text.")
    begun = scene.history[0].name == "select_text" and scene.history[0].arguments["text"] == target
    if begun and style in STYLES and len(scene.history) == 1:
        return click(_button(scene, STYLES[style]))
    if begun and style in STYLES and len(scene.history) == 2 and scene.last_use(_button(scene, STYLES[style])) == 1:
        return click(scene.submit())
    before, _, after = page.name.partition(target)
    pieces = [(text, kind) for text, kind in ((before, "none"), (target, style), (after, "none")) if text]
    return _write(scene, page, pieces)


def _write(scene: Scene, page: Line, pieces: list[Piece]) -> Advice:
    since = _emptied(scene, page)
    if since is None:
        return _empty(scene, page)
    written = sum(action.name == "type" for action in scene.history[since:])
    if written == len(pieces):
        return click(scene.submit())
    text, kind = pieces[written]
    picker, color = _button(scene, PICKER), COLORS.get(kind)
    if palette := _palette(scene):
        return click(first(item for item in palette if item.facts.get("color") == color))
    if (_is_active(picker) and color is None) or (color is not None and not _picked(scene, color)):
        return click(picker)
    for style, name in STYLES.items():
        if _is_active(button := _button(scene, name)) != (style == kind):
            return click(button)
    return Advice(call("type", text), "I write this part.")


def _picked(scene: Scene, color: str) -> bool:
    """Whether this colour was picked since something was written or deleted."""
    wrote = max(turn for turn, action in enumerate(scene.history) if action.name in ("type", "press"))
    items = [line for view in scene.views for line in view if line.facts.get("color") == color]
    return any(scene.last_use(line) > wrote for line in items)


def _emptied(scene: Scene, page: Line) -> int | None:
    """Since when the page was empty and only buttons were clicked and texts typed; None if it was not."""
    own = {line.number for view in scene.views for line in view if line.number != page.number and line.name != "Submit"}
    for turn in range(len(scene.history) - 1, -1, -1):
        action = scene.history[turn]
        if action.name == "press" and action.arguments["key"] == "Backspace":
            empty = all(line.number != page.number or not line.name for line in scene.views[turn + 1])
            return turn + 1 if empty else None
        if action.name != "type" and (action.name != "click" or action.arguments["element"] not in own):
            return None
    return None


def _empty(scene: Scene, page: Line) -> Advice:
    """Deletes the text and, with it, its styles."""
    last = scene.last
    if last and last.name == "press" and last.arguments["key"] == "Control+a" and len(scene.history) > 1:
        return press("Backspace", "I delete the text.")
    if scene.last_use(page) == len(scene.history) - 1:
        return press("Control+a", "I mark everything.")
    if _palette(scene):
        return click(_button(scene, PICKER), "I close the colours.")
    return click(first(line for line in scene.elements if line.number == page.number), "I write the text again.")


def _palette(scene: Scene) -> list[Line]:
    """The colours on offer while the picker is open; the first one, without a colour, takes a colour away."""
    return [line for line in scene.elements if "ql-picker-item" in str(line.facts.get("class", "")).split()]


def _button(scene: Scene, name: str) -> Line:
    return first(line for line in scene.elements if name in str(line.facts.get("class", "")).split())


def _is_active(line: Line) -> bool:
    return "ql-active" in str(line.facts["class"]).split()


EXPERTS: dict[str, Expert] = {"text-editor": editor}
