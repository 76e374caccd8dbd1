"""Experts for pages where the mouse draws, turns or catches something, turn by turn."""

from __future__ import annotations

import math

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, call, check_then, click, first

CORNERS = 12
RADIUS = 20


def draw_circle(scene: Scene) -> Advice:
    """Round the mark from corner to corner with the button held; the page wants the corners equally far from it."""
    mark = first(scene.all(id="circ")).facts
    names = [action.name for action in scene.history]
    begin = len(names) - names[::-1].index("mouse_down") - 1 if "mouse_down" in names else len(names)
    drawn, rest = names[begin : begin + CORNERS + 1], names[begin + CORNERS + 1 :]
    if drawn[1:] != ["mouse_move"] * len(drawn[1:]) or rest not in ([], ["mouse_up"]):
        drawn, rest = [], []  # it was not a circle
    if rest:
        return click(scene.submit())
    angle = 2 * math.pi * len(drawn) / CORNERS
    x, y = round(mark["x"] + RADIUS * math.cos(angle)), round(mark["y"] + RADIUS * math.sin(angle))
    name = "mouse_down" if not drawn else "mouse_move" if len(drawn) <= CORNERS else "mouse_up"
    return Advice(call(name, x, y), "I go round the point.")


# Where the cube is taken, and how far it is pulled at once: about a quarter of a turn.
HOLD, PULL = (80, 80), 75


def turn_cube(scene: Scene) -> Advice:
    """Takes the cube and pulls it on, a quarter at a time, until the wanted side is the active one."""
    last, wanted = scene.last, scene.quoted[0]
    if not _held(scene) and _active(scene) == wanted:
        return click(scene.submit())
    if last is None or last.name not in ("mouse_move", "mouse_down"):
        if _held(scene):
            return Advice(call("mouse_up", *HOLD), "I let go first.")
        # A mouse that comes from elsewhere with its button down would turn the cube on its way.
        return Advice(call("mouse_move", *HOLD), "I go to the cube.")
    x, y = (round(float(str(last.arguments[axis]))) for axis in ("x", "y"))
    if not _held(scene):
        near = Advice(call("mouse_down", *HOLD), "I take the cube.")
        return near if (x, y) == HOLD else Advice(call("mouse_move", *HOLD), "I go to the cube.")
    if _active(scene) == wanted:
        return Advice(call("mouse_up", x, y), f"{wanted} is in front; I let go.")
    x, y = (x, y + PULL) if _head_over_heels(scene, wanted) else (x + PULL, y)
    return Advice(call("mouse_move", x, y), f"{_active(scene)} is in front; I pull on.")


def _held(scene: Scene) -> bool:
    """Whether the mouse button is down. Every other use of the mouse ends with the button up."""
    uses = [
        a.name
        for a in scene.history
        if a.name in ("mouse_down", "mouse_up", "mouse_click", "mouse_drag", "click", "drag")
    ]
    return bool(uses) and uses[-1] == "mouse_down"


def _active(scene: Scene) -> str:
    return first(line for line in scene.elements if "active" in str(line.facts.get("class", "")).split()).name


def _head_over_heels(scene: Scene, wanted: str) -> bool:
    """Whether the cube must turn that way rather than round: 1 and 6 are its top and bottom."""
    return wanted in "16" or _active(scene) in "16"


# What the page's pictures show, row by row.
DIGITS = (
    "0110 1001 1001 1001 1001 1001 0110", "0010 0110 0010 0010 0010 0010 0010",
    "0110 1001 1001 0010 0100 1000 1111", "0110 1001 0001 0110 0001 1001 0110",
    "1000 1010 1010 1111 0010 0010 0010", "1111 1000 1000 1110 0001 1001 0110",
    "0110 1001 1000 1110 1001 1001 0110", "1111 1001 0001 0010 0010 0100 0100",
    "0110 1001 1001 0110 1001 1001 0110", "0110 1001 1001 0111 0001 1001 0110",
)  # fmt: skip


def draw_digit(scene: Scene) -> Advice:
    """The example is a picture, but each digit is always drawn in the same way."""
    boxes = scene.all("checkbox")
    pattern = DIGITS[int(scene.quoted[0])].replace(" ", "")
    wanted = {box.number for box, bit in zip(boxes, pattern, strict=True) if bit == "1"}
    return check_then(boxes, lambda box: box.number in wanted, scene.submit())


def catch_circles(scene: Scene) -> Advice:
    """Clicks the circle that will soonest be gone; the page removes what was hit."""
    before = {line.number: line for line in scene.seen[-1]} if scene.seen else {}
    if not scene.all("circle"):
        return Advice(call("wait"), "All are caught.")
    here = [line for line in scene.all("circle") if -12 <= line.facts["x"] <= 172]
    if not here:
        return Advice(call("mouse_move", 1, 1), "None is near yet.")
    soonest = min(here, key=lambda line: _way_left(line, before.get(line.number)))
    # A click counts a little beside the circle too, but only inside the drawing.
    x, y = max(4, min(156, soonest.facts["x"])), max(56, min(204, soonest.facts["y"]))
    return Advice(call("mouse_click", x, y), "I catch this one.")


def _way_left(line: Line, before: Line | None) -> int:
    """How far a circle is from the edge it moves to."""
    x = int(line.facts["x"])
    rightwards = before is None or int(before.facts["x"]) <= x
    return 160 - x if rightwards else x


# A light comes every 600 ms and stays for 250; the page is read every 200 ms.
READS_PER_LIGHT = 3


def repeat_lights(scene: Scene) -> Advice:
    """Watches until no light came when one was due, then presses the buttons in that order."""
    lights: list[str] = []
    lit, quiet = "", 0
    for view in (*scene.seen, scene.lines):
        now = next((str(line.facts["id"]) for line in view if "push" in str(line.facts.get("class", ""))), "")
        if now and now != lit:
            lights.append(now)
        lit, quiet = now, 0 if now else quiet + 1
    if not lights or quiet <= READS_PER_LIGHT:
        pressed = scene.done("click")
        if not pressed or len(lights) <= len(pressed):
            return Advice(call("mouse_move", 1, 1), "I watch the lights.")
    return click(first(scene.all("button", id=lights[len(scene.done("click"))])))


def follow_circle(scene: Scene) -> Advice:
    """Puts the mouse where the circle will be next if it continues as before."""
    line = first(scene.all("circle"))
    before = (
        next((past.facts for past in scene.seen[-1] if past.kind == "circle"), line.facts) if scene.seen else line.facts
    )
    x, y = (line.facts[axis] + (line.facts[axis] - before[axis]) // 2 for axis in ("x", "y"))
    return Advice(call("mouse_move", x, y), "I follow the circle.")


EXPERTS: dict[str, Expert] = {
    "draw-circle": draw_circle,
    "drag-cube": turn_cube,
    "number-checkboxes": draw_digit,
    "moving-items": catch_circles,
    "chase-circle": follow_circle,
    "simon-says": repeat_lights,
}
