"""Experts for pages where things are dragged, drawn or pointed at: they need the places of shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, call, click, first, ordinal

STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def _at(line: Line) -> tuple[int, int]:
    return line.facts["x"], line.facts["y"]


# Where to take hold of a shape, in widths and heights from its middle, which something may cover.
HOLDS = ((0.0, 0.0), (0.0, -0.4), (-0.4, 0.0), (0.4, 0.0), (0.0, 0.4))


def _drag(scene: Scene, line: Line, to: tuple[float, float]) -> Advice:
    """Drags a shape, held at another place for each try that moved nothing."""
    (x, y), (width, height) = _at(line), map(int, str(line.facts["size"]).split("x"))
    tries = zip(reversed(scene.history), pairwise(reversed(scene.views)), strict=True)
    in_vain = list(takewhile(lambda past: past[0].name == "mouse_drag" and _is_still(*past[1]), tries))
    across, down = HOLDS[len(in_vain) % len(HOLDS)]
    dx, dy = round(across * width), round(down * height)
    return Advice(call("mouse_drag", x + dx, y + dy, round(to[0]) + dx, round(to[1]) + dy), f"I drag the {line.kind}.")


def _is_still(view: Sequence[Line], other: Sequence[Line]) -> bool:
    """Whether every shape is at the same place in both."""
    places, others = ([(line.number, *_at(line)) for line in one if "x" in line.facts] for one in (view, other))
    return places == others


def _point(at: tuple[float, float]) -> Advice:
    return Advice(call("mouse_click", round(at[0]), round(at[1])), "I click the place.")


def drag_aside(scene: Scene) -> Advice:
    """Any distance from the start in the right direction will do."""
    direction = scene.goal_match(r"\b(left|right|up|down)\b")[1]
    item = first(line for line in scene.elements if line.kind in ("circle", "rect", "polygon", "letter"))
    (x, y), (dx, dy), (x0, y0) = _at(item), STEPS[direction], _at(scene.at_first(item))
    if (x - x0) * dx + (y - y0) * dy >= 10:
        return click(scene.submit())
    return _drag(scene, item, (x0 + 15 * dx, y0 + 15 * dy))


def drag_box(scene: Scene) -> Advice:
    small, large = first(scene.all(id="draggableSmall")), first(scene.all(id="draggableLarge"))
    (x, y), (bx, by) = _at(small), _at(large)
    return click(scene.submit()) if abs(x - bx) < 5 and abs(y - by) < 5 else _drag(scene, small, (bx, by))


KINDS = {"circle": "circle", "rectangle": "rect", "square": "rect", "triangle": "polygon"}


def _inside(line: Line, box: Line) -> bool:
    width, height = map(int, str(box.facts["size"]).split("x"))
    (x, y), (bx, by) = _at(line), _at(box)
    return abs(x - bx) < width / 2 and abs(y - by) < height / 2


def drag_shapes(scene: Scene) -> Advice:
    """Every shape into its box, spread a little so that none lies over another."""
    boxes = sorted((line for line in scene.all("rect") if line.facts.get("id") == "shape-container"), key=_at)
    shapes = [line for line in scene.elements if line.kind in ("circle", "rect", "polygon") and line not in boxes]
    wanted = scene.goal_match(r"all (\w+?)s? (?:shapes )?into")[1]
    target = {True: boxes[0], False: boxes[1] if len(boxes) > 1 else None}
    if len(boxes) > 1 and re.search(r"all \w+ into the right box", scene.goal):
        target = {True: boxes[1], False: boxes[0]}
    for place, line in enumerate(shapes):
        box = target[wanted == line.facts.get("fill") or KINDS.get(wanted) == line.kind]
        if box is not None and not _inside(line, box):
            x, y = _at(box)
            return _drag(scene, line, (x - 16 + 8 * (place % 5), y - 6 + 6 * (place % 3)))
    return click(scene.submit())


def _aim(scene: Scene, wanted: tuple[float, float]) -> Advice:
    """Clicks, looks where the dot came down (these pages draw it a little beside), corrects that, and submits."""
    dots = scene.all("circle", id="blue-circle")
    if not dots or scene.last is None or scene.last.name != "mouse_click":
        return _point(wanted)
    x, y = _at(dots[0])
    near = abs(x - wanted[0]) <= 2 and abs(y - wanted[1]) <= 2
    tries = len(list(takewhile(lambda action: action.name == "mouse_click", reversed(scene.history))))
    if (near and tries > 1) or tries > 3 or (x, y) == (round(wanted[0]), round(wanted[1])):
        return click(scene.submit())
    clicked = [float(str(scene.last.arguments[axis])) for axis in ("x", "y")]
    return _point((wanted[0] - x + clicked[0], wanted[1] - y + clicked[1]))


def circle_center(scene: Scene) -> Advice:
    return _aim(scene, _at(first(line for line in scene.all("circle") if "id" not in line.facts)))


def midpoint(scene: Scene) -> Advice:
    (ax, ay), (bx, by) = (_at(line) for line in scene.all("circle", fill="black"))
    return _aim(scene, ((ax + bx) / 2, (ay + by) / 2))


PRESSES = ("click", "drag", "mouse_click", "mouse_drag", "mouse_down")


def line_through(scene: Scene) -> Advice:
    x, y = _at(first(scene.all("circle")))
    (dx, dy) = (0, 1) if "vertical" in scene.goal else (1, 0)
    line = [x - 25 * dx, y - 25 * dy, x + 25 * dx, y + 25 * dy]
    # Whatever is pressed later replaces the line.
    presses = [action for action in scene.history if action.name in PRESSES]
    if presses and presses[-1].name == "mouse_drag" and list(presses[-1].arguments.values()) == line:
        return click(scene.submit())
    return Advice(call("mouse_drag", *line), "I draw the line.")


def sort_numbers(scene: Scene) -> Advice:
    """Puts the first number that is out of place before the one that is there."""
    items = scene.all("li")
    ordered = sorted(items, key=lambda line: int(line.name))
    for there, wanted in zip(items, ordered, strict=True):
        if there is not wanted:
            return Advice(call("drag", str(wanted.number), str(there.number)), f"{wanted.name} belongs higher.")
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
        target = items[ordinal(scene) - 1]
    elif spot := re.search(r"to the ([a-z ]+)\.", scene.goal):
        target = items[SPOTS.index(spot[1])] if spot[1] in SPOTS else items[0 if spot[1] == "top" else -1]
    else:
        row = 3 if len(items) == 9 else 1
        step = {"up": -row, "down": row, "left": -1, "right": 1}[scene.goal_match(r"\b(up|down|left|right)\b")[1]]
        target = items[items.index(item) + step]
    return Advice(call("drag", str(item.number), str(target.number)), f"I drag {name} there.")


def resize(scene: Scene) -> Advice:
    line = first(line for line in scene.elements if "ui-resizable-se" in str(line.facts.get("class", "")).split())
    (x, y), (x0, y0) = _at(line), _at(scene.at_first(line))
    step = 15 if "larger" in scene.goal else -15
    wanted = (x0, y0 + step) if "height" in scene.goal else (x0 + step, y0)
    if abs(x - wanted[0]) <= 5 and abs(y - wanted[1]) <= 5:
        return click(scene.submit())
    return _drag(scene, line, wanted)


def right_angle(scene: Scene) -> Advice:
    vertex, end = _at(first(scene.all(id="init-blue"))), _at(first(scene.all(id="init-black")))
    return _aim(scene, _best_point(lambda at: abs(_angle(end, vertex, at) - math.pi / 2)))


def bisect(scene: Scene) -> Advice:
    vertex = _at(first(line for line in scene.all("circle", fill="blue") if "id" not in line.facts))
    one, other = (_at(line) for line in scene.all("circle", fill="black"))
    whole = _angle(one, vertex, other)
    return _aim(
        scene, _best_point(lambda at: max(_angle(one, vertex, at), _angle(other, vertex, at), whole / 2) - whole / 2)
    )


def _angle(one: tuple[float, float], vertex: tuple[float, float], other: tuple[float, float]) -> float:
    turn = [math.atan2(end[1] - vertex[1], end[0] - vertex[0]) for end in (one, other)]
    return abs((turn[0] - turn[1] + math.pi) % (2 * math.pi) - math.pi)


def _best_point(error: Callable[[tuple[int, int]], float]) -> tuple[int, int]:
    """The point of the drawing where the error is least; the pages measure angles between whole points."""
    return min(((x, y) for x in range(8, 150) for y in range(60, 170)), key=error)


def hot_cold(scene: Scene) -> Advice:
    """Feels its way over a grid with the mouse, then around where it was warm."""
    area = first(scene.all(id="touch-area"))
    width, height = map(int, str(area.facts["size"]).split("x"))
    left, top = area.facts["x"] - width // 2, area.facts["y"] - height // 2
    felt = _felt(scene)
    for point, signal in felt.items():
        if signal == "HOT":
            return _point(point)
    warm = [point for point, signal in felt.items() if signal == "WARM"]
    cold = [point for point, signal in felt.items() if signal == "COLD"]
    fine = [(x, y) for x in range(left + 3, left + width, 5) for y in range(top + 3, top + height, 5)]
    open_points = [point for point in fine if point not in felt and _possible(point, felt)]
    if not open_points:
        open_points = [point for point in fine if point not in felt]
    anchor = (warm or cold or [(left + width // 2, top + height // 2)])[-1]
    best = (
        min(open_points, key=lambda p: (p[0] - anchor[0]) ** 2 + (p[1] - anchor[1]) ** 2)
        if warm
        else open_points[len(open_points) // 2]
    )
    return Advice(call("mouse_move", *best), "I feel for the warmth.")


BANDS = {"HOT": (0, 5), "WARM": (5, 10), "COLD": (10, 40), "ICE COLD": (40, 999)}


def _possible(point: tuple[int, int], felt: dict[tuple[int, int], str]) -> bool:
    """Whether the hot spot could lie here, as far as what was felt goes; a grid point stands for its surroundings."""
    for (x, y), signal in felt.items():
        distance = ((x - point[0]) ** 2 + (y - point[1]) ** 2) ** 0.5
        low, high = BANDS.get(signal, (0, 999))
        if not low - 4 <= distance <= high + 4:
            return False
    return True


def _felt(scene: Scene) -> dict[tuple[int, int], str]:
    """What the page showed where the mouse was moved to."""
    felt = {}
    for action, view in zip(scene.history, scene.views[1:], strict=True):
        if action.name == "mouse_move":
            x, y = (round(float(str(action.arguments[axis]))) for axis in ("x", "y"))
            felt[x, y] = next((line.name for line in view if line.name in BANDS), "")
    return felt


EXPERTS: dict[str, Expert] = {
    "drag-circle": drag_aside,
    "drag-single-shape": drag_aside,
    "drag-box": drag_box,
    "drag-shapes": drag_shapes,
    "drag-shapes-2": drag_shapes,
    "circle-center": circle_center,
    "find-midpoint": midpoint,
    "draw-line": line_through,
    "drag-sort-numbers": sort_numbers,
    "drag-items": drag_item,
    "drag-items-grid": drag_item,
    "resize-textarea": resize,
    "right-angle": right_angle,
    "bisect-angle": bisect,
    "hot-cold": hot_cold,
}
