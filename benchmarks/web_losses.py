"""Web pages that cannot be won any more, and why: each reason follows from the page's own script."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from bough.worlds.web.experts.clicking import presses_by_drag
from bough.worlds.web.experts.puzzles import chance_to_win, marks_of
from bough.worlds.web.page import ENOUGH, ActionRefusedError

# The page's score is the share of these milliseconds that the mouse was inside the circle.
CHASE_MS = 10_000
# Goals of email-inbox-forward-nl-turk and email-inbox-nl-turk whose templates have sender and receiver mixed up.
MIXED_UP = re.compile(
    r"Find the email from \w+ and forward it to \w+\.|Find yesterday's emails from \w+ and forward them to \w+\.|"
    r"Forward \w+'s email from yesterday to \w+\.|Forward all messages from \w+ to \w+\.|"
    r"Send \w+ the message from \w+\."
)
SHAPES = ("circle", "rect", "polygon", "letter")


async def lost(made: Any, before: int) -> str | None:
    """Why the page cannot be won, if that is certain; the first `before` actions are not the expert's."""
    page, history = made.page_name, made.history[:before]
    if not made.view.done and not any(line.number for line in made.view.lines):
        return "the page shows nothing to act on any more"
    presses = [_pressed(made, turn) for turn in range(len(history))]
    if page in ("button-delay", "click-button-sequence") and [n for n in presses if n in ("ONE", "TWO")][:1] == ["TWO"]:
        return "TWO was pressed before ONE, and the page keeps the first two presses"
    if page == "simon-says" and (reason := _simon(made, before)):
        return reason
    if page == "moving-items" and any(_missed(made, turn) for turn in range(len(history))):
        return "a click caught nothing, which costs points that cannot be made up"
    if page.endswith("nl-turk") and MIXED_UP.fullmatch(made.view.goal):
        return "the page expects sender and receiver the other way round from its goal"
    if page == "chase-circle" and not made.view.done and await _outside_ms(made) > CHASE_MS * (1 - ENOUGH[page]):
        return "the mouse was outside the circle for too long, which cannot be made up"
    if page == "tic-tac-toe":
        return _tic_tac_toe(made, before)
    if page.startswith("drag-") and len(made.history) > before and await _out_of_reach(made):
        return "a shape lies where the mouse cannot reach it any more"
    return None


def _pressed(made: Any, turn: int) -> str:
    """The name of the element that was clicked."""
    action = made.history[turn]
    number = action.arguments.get("element")
    if action.name != "click" and not presses_by_drag(action, number):
        return ""
    return next((line.name for line in made.seen[turn].lines if line.number == number), "")


def _simon(made: Any, before: int) -> str | None:
    """The lights that came on, in order, against the buttons that were pressed."""
    lit = [{line.number for line in view.lines if "push" in str(line.facts.get("class"))} for view in _views(made)]
    lights = [now for before, after in pairwise([set(), *lit]) for now in after - before]
    presses = [action.arguments["element"] for action in made.history[:before] if action.name == "click"]
    if any(light != press for light, press in zip(lights, presses, strict=False)):
        return "a wrong button was pressed, and the page keeps all presses"
    if any(action.name == "wait" for action in made.history[:before]):
        return "a light came and went during one action, and the lights are shown once"
    return None


def _missed(made: Any, turn: int) -> bool:
    before, after = (
        {line.number for line in view.lines if line.kind == "circle"} for view in _views(made)[turn : turn + 2]
    )
    return made.history[turn].name in ("click", "mouse_click", "drag") and before <= after


def _views(made: Any) -> list[Any]:
    return [*made.seen, made.view]


def _tic_tac_toe(made: Any, before: int) -> str | None:
    chance = chance_to_win(marks_of(_views(made)[before].lines))
    if chance == 0:
        return "the game of tic-tac-toe cannot be won any more"
    if made.view.done and chance < 1:
        return "the best moves win tic-tac-toe only with luck: the page's player moves at random"
    return None


async def _outside_ms(made: Any) -> float:
    """How long the mouse was outside the circle, as the page itself counts."""
    outside = "missedFrames + (exitTime === null ? 0 : new Date().getTime() - exitTime)"
    counted = await made._page._evaluate(f"({{outside: {outside}}})")
    return float(counted["outside"])


async def _out_of_reach(made: Any) -> bool:
    """Whether the shape that the expert dragged last, in vain, is hidden wherever the mouse points at it."""
    last = made.history[-1]
    if made.view.done or last.name != "mouse_drag":
        return False
    x, y = last.arguments["from_x"], last.arguments["from_y"]
    before, now = (_shapes(view) for view in _views(made)[-2:])
    held = min(now, key=lambda shape: (shape.facts["x"] - x) ** 2 + (shape.facts["y"] - y) ** 2)
    if held not in before:
        return False
    try:
        await made._page._point(held.number)
    except ActionRefusedError:
        return True
    return False


def _shapes(view: Any) -> list[Any]:
    return [line for line in view.lines if line.kind in SHAPES and line.facts.get("id") != "shape-container"]
