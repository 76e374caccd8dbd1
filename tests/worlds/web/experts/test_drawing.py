from bough.worlds.web.experts import drawing
from tests.worlds.web.experts.scenes import advice, lines

SUBMIT = ("button", "Submit")


def test_a_circle_is_drawn_round_the_mark_and_closed():
    mark, did = ("circle", "", {"id": "circ", "x": 70, "y": 100}), []
    for _ in range(15):
        did.append(advice(drawing.draw_circle, "Draw a circle.", mark, SUBMIT, did=tuple(did)))
    points = [tuple(map(int, step.partition("(")[2][:-1].split(", "))) for step in did[:14]]
    assert [step.partition("(")[0] for step in did] == ["mouse_down"] + 12 * ["mouse_move"] + ["mouse_up", "click"]
    assert all(abs(((x - 70) ** 2 + (y - 100) ** 2) ** 0.5 - drawing.RADIUS) < 1 for x, y in points)
    assert points[0] == points[12] == (90, 100) and points[3] == (70, 120) and points[6] == (50, 100)


def side(name):
    return ("div", name, {"class": "cube-image active"})


def test_the_cube_is_taken_pulled_to_the_side_and_let_go():
    goal, did = 'Move the cube around so that "3" is the active side facing the user.', ["mouse_move(80, 80)"]
    assert advice(drawing.turn_cube, goal, side("6"), SUBMIT) == did[0]
    assert advice(drawing.turn_cube, goal, side("6"), SUBMIT, did=tuple(did)) == "mouse_down(80, 80)"
    did.append("mouse_down(80, 80)")
    assert advice(drawing.turn_cube, goal, side("6"), SUBMIT, did=tuple(did)) == "mouse_move(80, 155)"
    assert advice(drawing.turn_cube, goal, side("5"), SUBMIT, did=tuple(did)) == "mouse_move(155, 80)"
    did.append("mouse_move(155, 80)")
    assert advice(drawing.turn_cube, goal, side("3"), SUBMIT, did=tuple(did)) == "mouse_up(155, 80)"
    did.append("mouse_up(155, 80)")
    assert advice(drawing.turn_cube, goal, side("3"), SUBMIT, did=tuple(did)) == "click('2')"
    did = ("mouse_move(80, 80)", "mouse_down(80, 80)")
    for wanted in "16":
        assert (
            advice(drawing.turn_cube, f'Make "{wanted}" active.', side("3"), SUBMIT, did=did) == "mouse_move(80, 155)"
        )


def boxes(bits):
    return [("checkbox", "", {"checked": bit == "1"}) for bit in bits]


def test_a_digit_is_drawn_box_by_box():
    empty = boxes(28 * "0")
    assert advice(drawing.draw_digit, 'Draw the number "1" in the checkboxes.', *empty, SUBMIT) == "click('3')"
    assert advice(drawing.draw_digit, 'Draw the number "0" in the checkboxes.', *empty, SUBMIT) == "click('2')"
    one = boxes("0010 0110 0010 0010 0010 0010 0010".replace(" ", ""))
    assert advice(drawing.draw_digit, 'Draw the number "1" in the checkboxes.', *one, SUBMIT) == "click('29')"


def circle(x, y=100):
    return ("circle", "", {"x": x, "y": y})


def test_the_circle_that_will_soonest_be_gone_is_caught_inside_the_drawing():
    before = lines(circle(60), circle(150), circle(-17))
    now = [circle(70), circle(155), circle(-17)]
    assert (
        advice(drawing.catch_circles, "Click.", *now, did=("mouse_move(1, 1)",), seen=[before])
        == "mouse_click(155, 100)"
    )
    leftwards = lines(circle(60), circle(160), circle(-17))
    assert (
        advice(drawing.catch_circles, "Click.", *now, did=("mouse_move(1, 1)",), seen=[leftwards])
        == "mouse_click(70, 100)"
    )
    assert advice(drawing.catch_circles, "Click.", circle(-10, 212)) == "mouse_click(4, 204)"
    assert advice(drawing.catch_circles, "Click.", circle(-17)) == "mouse_move(1, 1)"
    assert advice(drawing.catch_circles, "Click.") == "wait()"


def lights(lit):
    return [("button", "", {"id": f"button-{n}", **({"class": "push"} if n == lit else {})}) for n in (1, 2, 3, 4)]


def test_lights_are_watched_to_their_end_and_repeated():
    shown = [0, 0, 2, 2, 0, 2, 0, 0, 4, 4, 0, 0, 0, 0]
    views = [lines(*lights(lit)) for lit in shown]
    for number in range(len(shown)):
        did = number * ("mouse_move(1, 1)",)
        told = advice(drawing.repeat_lights, "Push.", *lights(shown[number]), did=did, seen=views[:number])
        assert told == ("mouse_move(1, 1)" if number < 13 else "click('2')"), number
    did, seen = 13 * ("mouse_move(1, 1)",), [*views]
    for button in (2, 2, 4):
        assert advice(drawing.repeat_lights, "Push.", *lights(0), did=did, seen=seen) == f"click('{button}')"
        did, seen = (*did, f"click('{button}')"), [*seen, views[0]]


def test_the_circle_is_met_where_it_goes():
    assert advice(drawing.follow_circle, "Follow.", circle(50, 60)) == "mouse_move(50, 60)"
    before = lines(circle(40, 64))
    assert (
        advice(drawing.follow_circle, "Follow.", circle(50, 60), did=("mouse_move(1, 1)",), seen=[before])
        == "mouse_move(55, 58)"
    )
