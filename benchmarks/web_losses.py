"""Web pages that cannot be won any more, and why: each reason follows from the page's own script."""

from __future__ import annotations

from typing import Any


async def lost(made: Any, before: int) -> str | None:
    """Why the page cannot be won, if that is certain; the first `before` actions are not the expert's."""
    if not made.view.done and not any(line.number for line in made.view.lines):
        return "the page shows nothing to act on any more"
    if made.page_name == "click-button-sequence":
        pressed = [_pressed(made, turn) for turn in range(before)]
        if [name for name in pressed if name in ("ONE", "TWO")][:1] == ["TWO"]:
            return "TWO was pressed before ONE, and the page keeps the first two presses"
    return None


def _pressed(made: Any, turn: int) -> str:
    """The name of the element that was clicked; to drag an element onto itself is a click."""
    action = made.history[turn]
    number = action.arguments.get("element")
    if action.name != "click" and (action.name != "drag" or action.arguments["target"] != number):
        return ""
    return next((line.name for line in made.seen[turn].lines if line.number == number), "")
