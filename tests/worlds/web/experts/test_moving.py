import pytest

from bough.worlds.web.experts import moving
from tests.worlds.web.experts.scenes import advice, lines

SUBMIT = ("button", "Submit")


def circle(x, y, **facts):
    return ("circle", "", {"x": x, "y": y, "size": "7x7", **facts})


@pytest.mark.parametrize(("way", "x", "y"), [("up", 50, 85), ("down", 50, 115), ("left", 35, 100), ("right", 65, 100)])
def test_a_shape_is_dragged_aside(way, x, y):
    goal = f"Drag the circle {way} then press Submit."
    assert advice(moving.drag_aside, goal, circle(50, 100), SUBMIT) == f"mouse_drag(50, 100, {x}, {y})"
    dragged = {"did": ("mouse_drag(1, 1, 1, 1)",), "seen": [lines(circle(50, 100), SUBMIT)]}
    assert advice(moving.drag_aside, goal, circle(x, y), SUBMIT, **dragged) == "click('2')"
    wrong = advice(moving.drag_aside, goal, circle(100 - x, 200 - y), SUBMIT, **dragged)
    assert wrong == f"mouse_drag({100 - x}, {200 - y}, {x}, {y})", "dragged the other way before"


def test_a_dot_that_came_down_beside_is_corrected():
    target, goal = circle(60, 100), "Find and click on the center of the circle."
    assert advice(moving.circle_center, goal, target, SUBMIT) == "mouse_click(60, 100)"
    beside = [target, SUBMIT, circle(62, 103, id="blue-circle")]
    assert advice(moving.circle_center, goal, *beside, did=("mouse_click(60, 100)",)) == "mouse_click(58, 97)"
    right = [target, SUBMIT, circle(60, 100, id="blue-circle")]
    assert advice(moving.circle_center, goal, *right, did=("mouse_click(60, 100)",)) == "click('2')"
    twice, near = ("mouse_click(60, 100)", "mouse_click(58, 97)"), [target, SUBMIT, circle(61, 101, id="blue-circle")]
    assert advice(moving.circle_center, goal, *near, did=twice) == "click('2')"
    assert advice(moving.circle_center, goal, *beside, did=twice * 2) == "click('2')", "it will not get better"
    assert advice(moving.circle_center, goal, *near, did=("click('1')",)) == "mouse_click(60, 100)", "not its own dot"


def test_points_are_worked_out():
    points = [circle(20, 100, fill="black"), circle(60, 120, fill="black")]
    assert advice(moving.midpoint, "Find the mid-point.", *points, SUBMIT) == "mouse_click(40, 110)"
    ends = [circle(40, 100, id="init-black"), circle(80, 100, id="init-blue")]
    x, y = point(advice(moving.right_angle, "Create a right angle.", *ends, SUBMIT))
    assert x == 80 and y != 100
    arms = [circle(40, 80, fill="blue"), circle(100, 80, fill="black"), circle(40, 140, fill="black")]
    x, y = point(advice(moving.bisect, "Bisect the angle.", *arms, SUBMIT))
    assert x - 40 == y - 80 > 0


def point(advised):
    x, y = advised.removeprefix("mouse_click(").removesuffix(")").split(", ")
    return int(x), int(y)


def test_numbers_are_sorted_from_the_front():
    items = [("li", "10"), ("li", "30"), ("li", "20"), SUBMIT]
    assert advice(moving.sort_numbers, "Sort the numbers.", *items) == "drag('3', '2')"
    assert advice(moving.sort_numbers, "Sort the numbers.", items[0], items[2], items[1], SUBMIT) == "click('4')"


def test_an_item_is_dragged_onto_the_one_that_stands_where_it_should_go():
    grid = [("li", name) for name in "abcdefghi"]
    assert advice(moving.drag_item, "Drag e up by one.", *grid) == "drag('5', '2')"
    assert advice(moving.drag_item, "Drag e right by one.", *grid) == "drag('5', '6')"
    assert advice(moving.drag_item, "Drag a to the bottom center.", *grid) == "drag('1', '8')"
    assert advice(moving.drag_item, "Drag c to the 1st position.", *grid[:5]) == "drag('3', '1')"
    assert advice(moving.drag_item, "Drag c down by one.", *grid[:5]) == "drag('3', '4')"


def test_shapes_go_into_their_box():
    box = ("rect", "", {"id": "shape-container", "x": 120, "y": 100, "size": "60x60"})
    inside = ("circle", "", {"x": 118, "y": 98, "fill": "red", "size": "9x9"})
    outside = ("circle", "", {"x": 20, "y": 80, "fill": "red", "size": "9x9"})
    other = ("circle", "", {"x": 30, "y": 80, "fill": "blue", "size": "9x9"})
    goal = "Drag all reds into the black box."
    assert advice(moving.drag_shapes, goal, box, inside, outside, other, SUBMIT).startswith("mouse_drag(20, 80, ")
    assert advice(moving.drag_shapes, goal, box, inside, other, SUBMIT) == "click('4')"


def test_where_it_is_hot_is_clicked():
    area = ("div", "", {"id": "touch-area", "x": 80, "y": 120, "size": "140x120"})
    first = advice(moving.hot_cold, "Find and click on the HOT area.", area)
    assert first.startswith("mouse_move(")
    hot = advice(moving.hot_cold, "Find and click on the HOT area.", area, "HOT", did=("mouse_move(50, 60)",))
    assert hot == "mouse_click(50, 60)"


def test_a_shape_that_did_not_move_is_held_elsewhere():
    goal, big = "Drag the circle up then press Submit.", ("circle", "", {"x": 50, "y": 180, "size": "20x20"})
    holds = ["mouse_drag(50, 180, 50, 165)", "mouse_drag(50, 172, 50, 157)", "mouse_drag(42, 180, 42, 165)"]
    for number, hold in enumerate(holds):
        assert advice(moving.drag_aside, goal, big, SUBMIT, did=tuple(holds[:number])) == hold
    assert advice(moving.drag_aside, goal, big, SUBMIT, did=(*holds, "wait()")) == holds[0]
    moved = {"did": (holds[0],), "seen": [lines(("circle", "", {"x": 50, "y": 150, "size": "20x20"}), SUBMIT)]}
    assert advice(moving.drag_aside, goal, big, SUBMIT, **moved) == "mouse_drag(50, 180, 50, 135)"


def test_a_line_that_a_later_click_replaced_is_drawn_again():
    goal, drawn = "Draw a vertical line that runs through the dot, then press submit.", "mouse_drag(60, 75, 60, 125)"
    assert advice(moving.line_through, goal, circle(60, 100), SUBMIT) == drawn
    assert advice(moving.line_through, goal, circle(60, 100), SUBMIT, did=(drawn,)) == "click('2')"
    assert advice(moving.line_through, goal, circle(60, 100), SUBMIT, did=(drawn, "wait()")) == "click('2')"
    assert advice(moving.line_through, goal, circle(60, 100), SUBMIT, did=(drawn, "click('1')")) == drawn
    assert advice(moving.line_through, goal, circle(60, 100), SUBMIT, did=("mouse_drag(1, 2, 3, 4)",)) == drawn
